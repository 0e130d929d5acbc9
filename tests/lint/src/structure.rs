//! What the structure of the code is held to: arrows between crates, circles among files, and the size of what a reader
//! has to keep in mind at once.

use std::{fs, io, path::Path};

use syn::{
    FnArg, Signature, Type,
    spanned::Spanned,
    visit::{self, Visit},
};

use crate::{
    modules::{Crate, is_of_tests},
    rules::files_below,
};

/// The crates, lowest first, and which of them are pure. A crate uses crates above it in this list only.
const CRATES: [(&str, bool); 9] = [
    ("limits", true),
    ("rights", true),
    ("node", true),
    ("store", false),
    ("mesh", false),
    ("api", false),
    ("client", false),
    ("server", false),
    ("cli", false),
];
/// Folders of tests beside the crates.
const TESTS: [&str; 2] = ["sim", "tests"];
/// So many files may lead to each other in a circle.
const CIRCLE_MAX: usize = 4;
/// Lines of a function of a pure crate.
const LINES_MAX: usize = 80;
/// Arguments of a function of a pure crate, `self` counted.
const ARGUMENTS_MAX: usize = 7;
/// Fields of a structure of a pure crate. Settings may have more, and so may what an operator writes (`…Spec`).
const FIELDS_MAX: usize = 15;

/// What is wrong with the structure of the crates below a folder: a line each.
///
/// # Errors
/// A file cannot be read or is not Rust.
pub fn faults(root: &Path) -> io::Result<Vec<String>> {
    let mut faults = Vec::new();
    for (place, (name, is_pure)) in CRATES.into_iter().enumerate() {
        let folder = root.join("crates").join(name);
        let manifest = fs::read_to_string(folder.join("Cargo.toml"))?;
        for (above, _) in &CRATES[place..] {
            if is_used(&manifest, above) {
                faults.push(format!("crates/{name}: uses {above}, which is above it"));
            }
        }
        let main = ["src/lib.rs", "src/main.rs"].map(|path| folder.join(path));
        let Some(main) = main.iter().find(|path| path.exists()) else { continue };
        let read = Crate::read(main)?;
        faults.extend(of_crate(&read, is_pure).into_iter().map(|fault| format!("crates/{name}/src/{fault}")));
        let tests = ["tests", "benches"].map(|tests| folder.join(tests));
        for tests in tests.iter().filter(|tests| tests.exists()) {
            faults.extend(tuples_below(root, tests)?);
        }
    }
    for tests in TESTS {
        faults.extend(tuples_below(root, &root.join(tests))?);
    }
    Ok(faults)
}

/// The tuples among the parameters of all functions below a folder of tests: a line each.
fn tuples_below(root: &Path, folder: &Path) -> io::Result<Vec<String>> {
    let mut faults = Vec::new();
    for path in files_below(folder, ".rs")? {
        let name = path.strip_prefix(root).unwrap_or(&path).display();
        let parsed = syn::parse_file(&fs::read_to_string(&path)?)
            .map_err(|cause| io::Error::other(format!("{name}: {cause}")))?;
        let mut sizes = Sizes { of: Kind::Tests, faults: Vec::new() };
        parsed.items.iter().for_each(|item| sizes.visit_item(item));
        faults.extend(sizes.faults.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    Ok(faults)
}

/// Tells whether a manifest names a crate of ours among what its code is built with.
fn is_used(manifest: &str, name: &str) -> bool {
    let mut is_dependencies = false;
    manifest.lines().any(|line| {
        if line.starts_with('[') {
            is_dependencies = line == "[dependencies]";
        }
        is_dependencies
            && line.strip_prefix("acequia-").is_some_and(|rest| rest.starts_with(&format!("{name} ")))
    })
}

fn of_crate(read: &Crate, is_pure: bool) -> Vec<String> {
    let mut faults = Vec::new();
    for circle in read.circles().into_iter().filter(|circle| circle.len() > CIRCLE_MAX) {
        let files: Vec<_> =
            circle.iter().map(|module| read.files[*module].path.display().to_string()).collect();
        faults.push(format!(
            "{}: {} files lead to each other in a circle, at most {CIRCLE_MAX}: {}",
            files[0],
            files.len(),
            files.join(" ")
        ));
    }
    for file in read.files.values() {
        let of = if is_pure { Kind::Pure } else { Kind::Shell };
        let mut sizes = Sizes { of, faults: Vec::new() };
        file.items.iter().for_each(|item| sizes.visit_item(item));
        faults.extend(sizes.faults.into_iter().map(|fault| format!("{}: {fault}", file.path.display())));
    }
    faults
}

/// The code that a file belongs to. It says which rules the file is held to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A pure crate is held to all rules.
    Pure,
    /// Another crate is held to the rules about tuples.
    Shell,
    /// Tests are held to the rule about tuples as parameters.
    Tests,
}

/// What is too large, or has no name, in one file.
struct Sizes {
    of: Kind,
    faults: Vec<String>,
}

impl Sizes {
    fn signature(&mut self, signature: &Signature, lines: usize) {
        let name = &signature.ident;
        let is_tuple = |argument: &FnArg| matches!(argument, FnArg::Typed(typed) if has_tuple(&typed.ty));
        if signature.inputs.iter().any(is_tuple) {
            self.faults.push(format!("{name} takes a tuple: give its parts names"));
        }
        if self.of != Kind::Pure {
            return;
        }
        if lines > LINES_MAX {
            self.faults.push(format!("{name} has {lines} lines, at most {LINES_MAX}"));
        }
        let arguments = signature.inputs.len();
        if arguments > ARGUMENTS_MAX {
            self.faults.push(format!("{name} takes {arguments} arguments, at most {ARGUMENTS_MAX}"));
        }
    }
}

impl<'ast> Visit<'ast> for Sizes {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_of_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.signature(&item.sig, lines_of(&item.sig, item));
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.signature(&item.sig, lines_of(&item.sig, item));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.signature(&item.sig, lines_of(&item.sig, item));
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let (name, fields) = (item.ident.to_string(), item.fields.len());
        let is_settings = ["Settings", "Config", "Spec"].iter().any(|end| name.ends_with(end));
        if self.of == Kind::Pure && fields > FIELDS_MAX && !is_settings {
            self.faults.push(format!("{name} has {fields} fields, at most {FIELDS_MAX}"));
        }
        visit::visit_item_struct(self, item);
    }

    /// A tuple behind a name is one all the same: its parts have none. A key with its value, both borrowed, is
    /// what callers write as a pair.
    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        let is_borrowed = |part: &Type| matches!(part, Type::Reference(_));
        let is_refused = match &*item.ty {
            Type::Tuple(tuple) => tuple.elems.len() > 1 && !tuple.elems.iter().all(is_borrowed),
            _ => false,
        };
        if self.of != Kind::Tests && is_refused {
            self.faults.push(format!("{} is a tuple: make it a structure", item.ident));
        }
        visit::visit_item_type(self, item);
    }
}

/// Tells whether a parameter is a tuple, or a reference to one, or one that may be missing.
fn has_tuple(kind: &Type) -> bool {
    match kind {
        Type::Tuple(tuple) => !tuple.elems.is_empty(),
        Type::Reference(reference) => has_tuple(&reference.elem),
        Type::Path(path) => path.path.segments.last().is_some_and(|last| {
            last.ident == "Option"
                && matches!(&last.arguments, syn::PathArguments::AngleBracketed(inner)
                    if inner.args.iter().any(|inner| matches!(inner, syn::GenericArgument::Type(kind) if has_tuple(kind))))
        }),
        _ => false,
    }
}

/// How many lines something takes from its signature to its end.
fn lines_of(signature: &Signature, end: &impl Spanned) -> usize {
    end.span().end().line + 1 - signature.span().start().line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_in(text: &str, of: Kind) -> Vec<String> {
        let file = syn::parse_file(text).expect("Rust");
        let mut sizes = Sizes { of, faults: Vec::new() };
        file.items.iter().for_each(|item| sizes.visit_item(item));
        sizes.faults
    }

    #[test]
    fn a_crate_uses_crates_below_it() {
        let manifest = "[dependencies]\nacequia-node = { workspace = true }\n[dev-dependencies]\nacequia-cli = { workspace = true }\n";
        assert!(is_used(manifest, "node"));
        assert!(!is_used(manifest, "cli"), "tests may use what is above");
        assert!(!is_used(manifest, "no"));
    }

    #[test]
    fn parameters_have_names() {
        let named = |text: &str| faults_in(text, Kind::Tests);
        for tuple in ["(u64, u64)", "&(u64, u64)", "Option<(u64, u64)>", "&mut (u64, u64)"] {
            let fault = "f takes a tuple: give its parts names";
            assert_eq!(named(&format!("fn f(pair: {tuple}) {{}}")), [fault]);
            assert_eq!(named(&format!("impl X {{ fn f(&self, (a, b): {tuple}) {{}} }}")), [fault]);
            assert_eq!(named(&format!("trait X {{ fn f(&self, pair: {tuple}); }}")), [fault]);
        }
        assert_eq!(named("fn f(nothing: (), pairs: &[(u64, u64)], g: impl Fn((u64, u64))) {}"), [""; 0]);
        assert_eq!(named("#[cfg(test)] mod tests { fn f(pair: (u64, u64)) {} }"), [""; 0]);
    }

    #[test]
    fn parts_of_a_tuple_have_names() {
        let fault = "Pair is a tuple: make it a structure";
        assert_eq!(faults_in("type Pair = (u64, u64);", Kind::Shell), [fault]);
        assert_eq!(faults_in("mod a { pub type Pair<'a> = (&'a str, u64); }", Kind::Pure), [fault]);
        assert_eq!(faults_in("type Pair = (u64, u64);", Kind::Tests), [""; 0]);
        assert_eq!(faults_in("type Pairs = Vec<(u64, u64)>; type Nothing = ();", Kind::Shell), [""; 0]);
    }

    #[test]
    fn functions_and_structures_of_pure_crates_have_a_bound() {
        let lines = |count: usize| format!("/// Text.\nfn f() {{{}}}", "\n".repeat(count - 1));
        assert_eq!(faults_in(&lines(LINES_MAX), Kind::Pure), [""; 0]);
        assert_eq!(faults_in(&lines(LINES_MAX + 1), Kind::Pure), ["f has 81 lines, at most 80"]);
        assert_eq!(faults_in(&lines(LINES_MAX + 1), Kind::Shell), [""; 0]);
        let list =
            |count: usize| (0..count).map(|place| format!("a{place}: u8")).collect::<Vec<_>>().join(", ");
        let (few, many) = (list(ARGUMENTS_MAX), list(ARGUMENTS_MAX + 1));
        assert_eq!(faults_in(&format!("fn f({few}) {{}}"), Kind::Pure), [""; 0]);
        assert_eq!(faults_in(&format!("fn f({many}) {{}}"), Kind::Pure), ["f takes 8 arguments, at most 7"]);
        let (few, many) = (list(FIELDS_MAX), list(FIELDS_MAX + 1));
        assert_eq!(
            faults_in(&format!("struct F {{ {few} }} struct Settings {{ {many} }}"), Kind::Pure),
            [""; 0]
        );
        assert_eq!(faults_in(&format!("struct F {{ {many} }}"), Kind::Pure), ["F has 16 fields, at most 15"]);
    }

    #[test]
    fn the_order_of_crates_names_each_of_them() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
        let folders = fs::read_dir(root).expect("the crates").filter_map(Result::ok);
        let mut found: Vec<_> = folders
            .filter(|entry| entry.path().join("Cargo.toml").exists())
            .map(|entry| entry.file_name().display().to_string())
            .collect();
        let mut named = CRATES.map(|(name, _)| name.to_string()).to_vec();
        found.sort();
        named.sort();
        assert_eq!(found, named);
    }
}
