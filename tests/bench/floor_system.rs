//! The servers of `floor` on the system's allocator.

#![expect(clippy::print_stdout, reason = "that is where the address goes")]

mod floor;

fn main() -> Result<(), floor::Error> {
    floor::main()
}
