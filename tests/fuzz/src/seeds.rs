//! Initial inputs of a target. The code that writes such inputs makes them, so they are never stale.

use std::path::PathBuf;

/// If `SEEDS_TO` names a folder, writes the seeds there and ends the process.
pub fn write(seeds: impl FnOnce() -> Vec<Vec<u8>>) {
    let Some(folder) = std::env::var_os("SEEDS_TO").map(PathBuf::from) else { return };
    for (number, seed) in seeds().into_iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number:02}")), seed).expect("a folder to write to");
    }
    std::process::exit(0);
}

/// Random bytes, for targets that accept any bytes. The seeds are long, because short ones would grow too
/// slowly.
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
