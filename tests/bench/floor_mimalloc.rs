//! The servers of `floor` on mimalloc.

#![expect(clippy::print_stdout, reason = "that is where the address goes")]

mod floor;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), floor::Error> {
    floor::main()
}
