//! The functions that run inside Redis, as one library.
//!
//! The library and its functions are named by a hash of their text, so two versions of this program use one Redis side by
//! side while one replaces the other. Old ones stay until an operator deletes them: `FUNCTION LIST`, `FUNCTION DELETE`.

use std::{fmt::Write as _, sync::LazyLock};

/// Declares the functions: a name here, and the file in `lua` that registers `acequia_<file>` with the version behind it.
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
    /// Says which server this is, and its time.
    Identity = "identity",
    /// Begins a generation of a group.
    Group = "group",
    /// Says that a node has told all that it holds.
    Assert = "assert",
    /// Takes units of a window.
    Window = "window",
    /// Exchanges what a node holds of a bucket.
    Bucket = "bucket",
    /// Exchanges what a node holds of a sliding window.
    Sliding = "sliding",
    /// Claims the name of a charge, keeps the answer to it, or ends it.
    Name = "name",
    /// Leaves a letter for a node, or collects those that wait.
    Letters = "letters",
    /// Drops cells that say nothing.
    Sweep = "sweep",
}

/// What the functions share: local to the library, before all of them.
const SHARED: &str = include_str!("../../../../lua/pool.lua");

/// The library as it is loaded.
pub(super) static LIBRARY: LazyLock<Library> = LazyLock::new(Library::new);

#[derive(Debug)]
pub(super) struct Library {
    /// What `FUNCTION LOAD` is given.
    pub(super) text: String,
    /// The names to call, in the order of [`Function`].
    names: Vec<String>,
}

impl Library {
    fn new() -> Self {
        let mut body = String::from(SHARED);
        for (_, text) in FILES {
            // Each in a block of its own, so that what is local to one is unknown to the next.
            let _ = write!(body, "do\n{text}end\n");
        }
        let version = format!("{:08x}", hash(body.as_bytes()));
        let text = format!("#!lua name=acequia_{version}\nlocal version = '_{version}'\n{body}");
        let names = FILES.iter().map(|(file, _)| format!("acequia_{file}_{version}")).collect();
        Self { text, names }
    }

    /// What a function is called in Redis.
    pub(super) fn name(&self, function: Function) -> &str {
        &self.names[function as usize]
    }
}

/// 32-bit FNV-1a: it tells versions apart, and nobody gains by making two alike.
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
