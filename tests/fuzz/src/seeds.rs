//! Where a target begins: a few good inputs, made by the code that writes them, so that they are never stale.

use std::path::PathBuf;

/// Where `SEEDS_TO` names a folder, writes the seeds there and ends the process.
pub fn write(seeds: impl FnOnce() -> Vec<Vec<u8>>) {
    let Some(folder) = std::env::var_os("SEEDS_TO").map(PathBuf::from) else { return };
    for (number, seed) in seeds().into_iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number:02}")), seed).expect("a folder to write to");
    }
    std::process::exit(0);
}

/// Bytes of no meaning, for targets that make something of any: long ones, or they would grow too slowly.
pub fn random(count: u64, bytes: usize) -> Vec<Vec<u8>> {
    let seed = |number: u64| {
        let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let next = || {
            // Marsaglia's xorshift.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        std::iter::repeat_with(next).take(bytes).collect()
    };
    (1..=count).map(seed).collect()
}
