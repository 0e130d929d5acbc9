//! The functions that run in Redis, as one library.
//!
//! A hash of its text names the library and its functions. So two versions of this program can use one Redis
//! side by side, while one replaces the other. Old libraries stay until an operator deletes them: `FUNCTION
//! LIST`, `FUNCTION DELETE`.

use std::{fmt::Write as _, sync::LazyLock};

/// Declares the functions. Each has a name here and a file in `lua`, which registers `acequia_<file>` with
/// the version behind that name.
macro_rules! functions {
    ($($(#[$doc:meta])* $function:ident = $file:literal,)+) => {
        /// A function in Redis.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Function {
            $($(#[$doc])* $function,)+
        }

        /// The functions, each with the name of its file and its text, in the order of [`Function`].
        const FILES: &[(&str, &str)] = &[$(($file, include_str!(concat!("../../../../lua/", $file, ".lua"))),)+];
    };
}

functions! {
    /// Says which server answers, and its time.
    Identity = "identity",
    /// Begins a generation of a group.
    Group = "group",
    /// Says that a node has told everything that it holds.
    Assert = "assert",
    /// Counts hits of cells, for nodes that keep no counts.
    Count = "count",
    /// Takes units of a window.
    Window = "window",
    /// Exchanges the units that a node holds of a bucket.
    Bucket = "bucket",
    /// Exchanges the units that a node holds of a sliding window.
    Sliding = "sliding",
    /// Claims the name of a charge, keeps the answer to it, or ends it.
    Name = "name",
    /// Leaves a letter for a node, or collects its letters.
    Letters = "letters",
    /// Drops cells that say no more than absent ones.
    Sweep = "sweep",
}

/// The code that all functions share: local to the library, in front of the functions.
const SHARED: &str = include_str!("../../../../lua/pool.lua");

/// The library of this version.
pub(super) static LIBRARY: LazyLock<Library> = LazyLock::new(Library::new);

#[derive(Debug)]
pub(super) struct Library {
    /// The text for `FUNCTION LOAD`.
    pub(super) text: String,
    /// The names of the functions in Redis, in the order of [`Function`].
    names: Vec<String>,
}

impl Library {
    fn new() -> Self {
        let mut body = String::from(SHARED);
        for (_, text) in FILES {
            // Each function has a block of its own, so that its locals are unknown to the next one.
            let _ = write!(body, "do\n{text}end\n");
        }
        let version = format!("{:08x}", hash(body.as_bytes()));
        let text = format!("#!lua name=acequia_{version}\nlocal version = '_{version}'\n{body}");
        let names = FILES.iter().map(|(file, _)| format!("acequia_{file}_{version}")).collect();
        Self { text, names }
    }

    /// The name of a function in Redis.
    pub(super) fn name(&self, function: Function) -> &str {
        &self.names[function as usize]
    }
}

/// 32-bit FNV-1a. It tells versions apart; nobody gains by making two alike.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(hash(b""), 0x811c_9dc5);
        assert_eq!(hash(b"foobar"), 0xbf9c_f968);
    }

    #[test]
    fn the_library_and_its_functions_carry_one_version() {
        let first = LIBRARY.text.lines().next().expect("a line");
        let version = first.strip_prefix("#!lua name=acequia_").expect("a header");
        assert_eq!(version.len(), 8);
        assert_eq!(LIBRARY.name(Function::Identity), format!("acequia_identity_{version}"));
    }

    #[test]
    fn every_file_registers_its_own_name() {
        for (file, text) in FILES {
            assert!(text.contains(&format!("'acequia_{file}' .. version")), "{file}");
        }
    }
}
