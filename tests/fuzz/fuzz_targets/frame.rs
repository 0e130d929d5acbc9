//! `regions::wire::read`: frames from another region.
#![no_main]

use acequia_fuzz::{memory, place, seeds};
use acequia_node::regions::wire::{self, Frame};
use libfuzzer_sys::fuzz_target;

/// The most bytes of memory for a byte on the wire: the shortest entries have two bytes, and a growing vector
/// exists twice for a moment.
const BYTES_FOR_ONE: usize = 256;

fuzz_target!(
    init: seeds::write(|| {
        // The shortest frames, and the longest.
        let (_, mut wire) = place::history();
        wire.sort_by_key(|bytes| (bytes.len(), bytes.clone()));
        let short = wire.iter().step_by(wire.len() / 8).filter(|bytes| bytes.len() < 2_000).cloned();
        short.chain(wire.iter().rev().take(3).cloned()).collect()
    }),
    |bytes: &[u8]| {
        let (read, peak) = memory::peak_of(|| wire::read(bytes));
        assert!(peak <= 16_384 + BYTES_FOR_ONE * bytes.len(), "{peak} bytes for {}", bytes.len());
        let Ok(frame) = read else { return };
        assert_eq!(wire::read(&written(&frame)).as_ref(), Ok(&frame), "what was read reads back");
        let _ = frame.entries.iter().map(|entry| format!("{entry:?}").len()).sum::<usize>();
    }
);

fn written(frame: &Frame) -> Vec<u8> {
    let mut bytes = vec![wire::VERSION];
    bytes = postcard::to_extend(&frame.header, bytes).expect("a header");
    for entry in &frame.entries {
        bytes = postcard::to_extend(entry, bytes).expect("an entry");
    }
    bytes
}
