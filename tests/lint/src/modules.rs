//! The files of a crate as a graph: which file names something of which other file.
//!
//! Paths that begin with `crate`, `self`, `super` or a child module are followed to the file that defines what they
//! name, through re-exports. Three things are no edge: what a file re-exports without using it, tests, and what a file
//! uses of the files of the folders around it. Those files hold what the folder shares, such as a structure whose methods are
//! spread over its files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    path::{Path, PathBuf},
};

use syn::{
    Attribute, Item, ItemMod, UseTree, Visibility,
    visit::{self, Visit},
};

/// Names of modules from the crate's root; the root itself is empty.
pub type ModulePath = Vec<String>;

/// How many re-exports a path is followed through.
const REEXPORTS_MAX: usize = 16;

/// The source of a crate, parsed.
#[derive(Debug, Default)]
pub struct Crate {
    /// Its files, by the module that each one is.
    pub files: BTreeMap<ModulePath, File>,
}

/// One file of a crate.
pub struct File {
    /// Where it lies, from the crate's `src`.
    pub path: PathBuf,
    /// What stands in it, without what is compiled for tests only.
    pub items: Vec<Item>,
    /// What it declares itself.
    defined: BTreeSet<String>,
    /// What it brings in by `use`: the name here and the path to it.
    imports: Vec<Import>,
    /// Paths in its code, `use` aside.
    paths: Vec<Vec<String>>,
}

impl fmt::Debug for File {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} ({} items)", self.path.display(), self.items.len())
    }
}

struct Import {
    /// `*` for all that the path holds.
    name: String,
    path: Vec<String>,
    is_reexport: bool,
}

impl Crate {
    /// Reads a crate from its root file.
    ///
    /// # Errors
    /// A file cannot be read or is not Rust.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut read = Self::default();
        let folder = root.parent().unwrap_or(root);
        read.read_file(folder, root.strip_prefix(folder).unwrap_or(root), Vec::new())?;
        Ok(read)
    }

    fn read_file(&mut self, src: &Path, path: &Path, module: ModulePath) -> io::Result<()> {
        let text = fs::read_to_string(src.join(path))?;
        let parsed = syn::parse_file(&text)
            .map_err(|cause| io::Error::other(format!("{}: {cause}", src.join(path).display())))?;
        let mut file = File {
            path: path.to_path_buf(),
            items: parsed.items.into_iter().filter(|item| !is_of_tests(attributes_of(item))).collect(),
            defined: BTreeSet::new(),
            imports: Vec::new(),
            paths: Vec::new(),
        };
        let mut children = Vec::new();
        for item in &file.items {
            if let Item::Mod(ItemMod { ident, content: None, attrs, .. }) = item {
                children.push((ident.to_string(), named_path(attrs)));
            }
            file.defined.extend(name_of(item));
        }
        let mut seen = Seen::default();
        file.items.iter().for_each(|item| seen.visit_item(item));
        (file.imports, file.paths) = (seen.imports, seen.paths);
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let folder = path.parent().unwrap_or(Path::new(""));
        let folder =
            if module.is_empty() || stem == "mod" { folder.to_path_buf() } else { folder.join(stem) };
        self.files.insert(module.clone(), file);
        for (name, named) in children {
            let candidates = named
                .into_iter()
                .chain([format!("{name}.rs"), format!("{name}/mod.rs")])
                .map(|end| folder.join(end));
            let child = candidates.into_iter().find(|path| src.join(path).exists());
            let child = child
                .ok_or_else(|| io::Error::other(format!("{}: no file of module {name}", path.display())))?;
            self.read_file(src, &child, module.iter().cloned().chain([name]).collect())?;
        }
        Ok(())
    }

    /// For each file, the files that it names something of, without those of the folders around it.
    pub fn edges(&self) -> BTreeMap<&ModulePath, BTreeSet<&ModulePath>> {
        let mut edges: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (module, file) in &self.files {
            let used: BTreeSet<_> = file.paths.iter().filter_map(|path| path.first()).collect();
            let named =
                file.imports.iter().filter(|import| !import.is_reexport || used.contains(&import.name));
            let paths = named.map(|import| &import.path).chain(&file.paths);
            let targets = paths
                .filter_map(|path| self.resolve(module, path, REEXPORTS_MAX))
                .filter(|to| !module.starts_with(to));
            edges.insert(module, targets.collect());
        }
        edges
    }

    /// The file that defines what a path in a module names; `None` for what is not of this crate.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<&ModulePath> {
        let (start, rest) = match path.split_first()? {
            (first, rest) if first == "crate" => (Vec::new(), rest),
            (first, rest) if first == "self" => (module.to_vec(), rest),
            (first, rest) if first == "super" => {
                let mut parent = module.to_vec();
                parent.pop();
                let more = rest.iter().take_while(|name| *name == "super").count();
                parent.truncate(parent.len().saturating_sub(more));
                (parent, &rest[more..])
            }
            (first, _) if self.files.contains_key(&[module, std::slice::from_ref(first)].concat()) => {
                (module.to_vec(), path)
            }
            _ => return None,
        };
        self.descend(&start, rest, depth)
    }

    fn descend(&self, module: &[String], rest: &[String], depth: usize) -> Option<&ModulePath> {
        let (here, file) = self.files.get_key_value(module)?;
        let Some((name, rest)) = rest.split_first() else { return Some(here) };
        let child = [module, std::slice::from_ref(name)].concat();
        if self.files.contains_key(&child) {
            return self.descend(&child, rest, depth);
        }
        if file.defined.contains(name) || depth == 0 {
            return Some(here);
        }
        let named = file.imports.iter().find(|import| import.name == *name);
        if let Some(to) = named.and_then(|import| self.resolve(module, &import.path, depth - 1)) {
            return Some(to);
        }
        let globs = file.imports.iter().filter(|import| import.name == "*");
        let found = globs.filter_map(|import| {
            let path: Vec<_> = import.path.iter().chain([name]).cloned().collect();
            let to = self.resolve(module, &path, depth - 1)?;
            self.files[to].defined.contains(name).then_some(to)
        });
        found.into_iter().next().or(Some(here))
    }

    /// The circles among the files: sets of which each file leads to each other. Largest first.
    pub fn circles(&self) -> Vec<Vec<&ModulePath>> {
        let edges = self.edges();
        let reach: BTreeMap<_, _> = edges.keys().map(|from| (*from, reached(&edges, from))).collect();
        let mut circles: Vec<Vec<_>> = Vec::new();
        for from in edges.keys() {
            if circles.iter().any(|circle| circle.contains(from)) {
                continue;
            }
            let circle: Vec<_> =
                reach[from].iter().filter(|to| reach[**to].contains(from)).copied().collect();
            if circle.len() > 1 {
                circles.push(circle);
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

fn reached<'a>(
    edges: &BTreeMap<&'a ModulePath, BTreeSet<&'a ModulePath>>,
    from: &'a ModulePath,
) -> BTreeSet<&'a ModulePath> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        open.extend(edges[at].iter().copied().filter(|to| reached.insert(*to)));
    }
    reached
}

/// What a walk through code gathers.
#[derive(Default)]
struct Seen {
    imports: Vec<Import>,
    paths: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Seen {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        add_imports(&item.tree, &mut Vec::new(), is_reexport, &mut self.imports);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_of_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    /// Arguments of macros are no syntax tree; paths in them are words joined by `::`.
    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        visit::visit_macro(self, called);
        let text = called.tokens.to_string().replace(" :: ", "::");
        for word in text.split(|letter: char| !letter.is_alphanumeric() && !matches!(letter, '_' | ':')) {
            if word.contains("::") {
                self.paths.push(word.split("::").filter(|part| !part.is_empty()).map(String::from).collect());
            }
        }
    }
}

fn add_imports(tree: &UseTree, prefix: &mut Vec<String>, is_reexport: bool, imports: &mut Vec<Import>) {
    let mut add = |name: String, last: Option<String>| {
        let path = prefix.iter().cloned().chain(last).collect();
        imports.push(Import { name, path, is_reexport });
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            add_imports(&path.tree, prefix, is_reexport, imports);
            prefix.pop();
        }
        UseTree::Name(name) if name.ident == "self" => add(prefix.last().cloned().unwrap_or_default(), None),
        UseTree::Name(name) => add(name.ident.to_string(), Some(name.ident.to_string())),
        UseTree::Rename(renamed) => add(renamed.rename.to_string(), Some(renamed.ident.to_string())),
        UseTree::Glob(_) => add("*".into(), None),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| add_imports(tree, prefix, is_reexport, imports));
        }
    }
}

/// The file that `#[path = "…"]` names.
fn named_path(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find(|attribute| attribute.path().is_ident("path")).and_then(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else { return None };
        Some(text.value())
    })
}

/// Tells whether what has these attributes is compiled for tests only.
pub fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate of files with these texts; the first is its root.
    fn crate_of(files: &[(&str, &str)]) -> Crate {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        Crate::read(&folder.path().join(files[0].0)).expect("a crate")
    }

    /// The edges of a crate, as text.
    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let read = crate_of(files);
        let edges = read.edges();
        let lines = edges.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to)));
        lines.map(|(from, to)| format!("{} -> {}", from.join("::"), to.join("::"))).collect()
    }

    #[test]
    fn paths_lead_to_the_file_that_defines_what_they_name() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use b::Thing; pub struct Root;"),
            ("a.rs", "use crate::{Root, Thing}; fn f() { crate::b::c::g(); }"),
            ("b/mod.rs", "mod c; pub(crate) use c::Other; pub struct Thing; fn f() { c::g() }"),
            ("b/c.rs", "use super::Thing; pub struct Other; pub fn g() {}"),
        ];
        // The root's re-export and what `c` takes of the folder around it are no edges.
        assert_eq!(edges(&files), ["a -> b", "a -> b::c", "b -> b::c"]);
    }

    #[test]
    fn tests_and_words_of_other_crates_are_no_edges() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use std::b::X; #[cfg(test)] mod tests { use crate::b::Y; }"),
            ("b.rs", "pub struct Y; fn f() { println!(\"{}\", crate::a::z()); }"),
        ];
        assert_eq!(edges(&files), ["b -> a"]);
    }

    #[test]
    fn circles_are_files_that_lead_to_each_other() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::c::*; pub struct B;"),
            ("c.rs", "use crate::a::A; pub struct C;"),
            ("d.rs", "use crate::a::A;"),
        ];
        let read = crate_of(&files);
        let circles: Vec<_> = read
            .circles()
            .iter()
            .map(|circle| circle.iter().map(|module| module.join("::")).collect::<Vec<_>>())
            .collect();
        assert_eq!(circles, [["a", "b", "c"]]);
    }
}
