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
