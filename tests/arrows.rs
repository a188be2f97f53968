//! The house's plan (docs/ARCHITECTURE.md): which crate may know which, where unsafe code may
//! stand and what it must say, and that every crate says what it does not do.

use cargo_metadata::{DependencyKind, MetadataCommand, Package};
use proc_macro2::{TokenStream, TokenTree};
use std::fs;
use std::path::{Path, PathBuf};

/// The arrows: who may depend on whom. `nvpoll-bench`, on which nobody may depend, is not bound.
const ARROWS: &[(&str, &[&str])] = &[
    ("nvpoll", &["nvpoll-engine", "nvpoll-host", "nvpoll-spec", "nvpoll-soft", "nvpoll-windows"]),
    (
        "nvpoll-engine",
        &["nvpoll-nvme", "nvpoll-pci", "nvpoll-mem", "nvpoll-spec", "nvpoll-windows"],
    ),
    ("nvpoll-nvme", &["nvpoll-pci", "nvpoll-mem", "nvpoll-spec"]),
    ("nvpoll-pci", &["nvpoll-mem", "nvpoll-soft", "nvpoll-spec"]),
    ("nvpoll-soft", &["nvpoll-spec", "nvpoll-mem"]),
    ("nvpoll-host", &["nvpoll-spec"]),
    ("nvpoll-mem", &["nvpoll-spec"]),
    ("nvpoll-spec", &[]),
    ("nvpoll-windows", &[]),
];

/// Arrows of tests alone.
const TEST_ARROWS: &[(&str, &[&str])] = &[("nvpoll-nvme", &["nvpoll-soft"])];

const UNBOUND: &str = "nvpoll-bench";

/// Where unsafe code may stand; a folder holds for all below it.
const UNSAFE_PLACES: &[&str] = &[
    "drivers/mem/src",
    "drivers/pci/src/vfio/ioctl.rs",
    "drivers/engine/src/admin.rs",
    "drivers/engine/src/calls.rs",
    "drivers/engine/src/io_uring/queue.rs",
    "drivers/engine/src/io_uring/ring.rs",
    "drivers/engine/src/libaio",
    "drivers/engine/src/windows/iocp_queue.rs",
    "drivers/engine/src/windows/ioring_queue.rs",
    "drivers/windows/src",
];

/// First pages that must forbid unsafe code, so that no `allow` below brings it back.
const FORBIDDING: &[&str] = &[
    "drivers/host/src/lib.rs",
    "drivers/nvme/src/lib.rs",
    "drivers/soft/src/lib.rs",
    "drivers/spec/src/lib.rs",
    "src/lib.rs",
    "src/main.rs",
    "tools/bench/src/main.rs",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn packages() -> Vec<Package> {
    let mut command = MetadataCommand::new();
    command.manifest_path(root().join("Cargo.toml")).no_deps();
    command.other_options(vec!["--offline".to_owned()]);
    command.exec().unwrap().packages
}

fn targets_of<'a>(table: &'a [(&str, &[&'a str])], from: &str) -> &'a [&'a str] {
    table.iter().find(|(name, _)| *name == from).map_or(&[], |(_, to)| to)
}

/// Whether `from` may depend on `to`, both of this house.
fn is_drawn(from: &str, to: &str, kind: DependencyKind) -> bool {
    let in_tests =
        kind == DependencyKind::Development && targets_of(TEST_ARROWS, from).contains(&to);
    to != UNBOUND && (from == UNBOUND || targets_of(ARROWS, from).contains(&to) || in_tests)
}

#[test]
fn no_arrow_but_the_plans() {
    let packages = packages();
    let ours = |name: &str| packages.iter().any(|package| package.name == name);
    let mut wrong = Vec::new();
    let mut arrows = 0;
    for package in &packages {
        let from = package.name.as_str();
        let is_known = from == UNBOUND || ARROWS.iter().any(|(name, _)| *name == from);
        assert!(is_known, "{from} is in no plan; give it its arrows here");
        for dependency in package.dependencies.iter().filter(|dependency| ours(&dependency.name)) {
            arrows += 1;
            if !is_drawn(from, &dependency.name, dependency.kind) {
                wrong.push(format!("{from} -> {} ({})", dependency.name, dependency.kind));
            }
        }
    }
    assert!(arrows >= 15, "only {arrows} arrows were seen");
    assert_eq!(wrong, Vec::<String>::new(), "arrows that the plan does not have");
}

#[test]
fn the_plan_refuses_what_it_does_not_draw() {
    let (normal, tests) = (DependencyKind::Normal, DependencyKind::Development);
    assert!(is_drawn("nvpoll", "nvpoll-engine", normal));
    assert!(is_drawn("nvpoll-nvme", "nvpoll-soft", tests));
    assert!(!is_drawn("nvpoll-nvme", "nvpoll-soft", normal));
    assert!(!is_drawn("nvpoll", "nvpoll-nvme", normal), "src knows engines by their trait");
    assert!(!is_drawn("nvpoll-mem", "nvpoll-pci", normal), "up");
    assert!(!is_drawn("nvpoll-host", "nvpoll-engine", tests));
    assert!(!is_drawn("nvpoll", UNBOUND, tests));
    assert!(!is_drawn("nvpoll-new", "nvpoll-spec", normal));
}

#[test]
fn each_crate_says_what_it_does_not_do() {
    for package in packages() {
        let is_page = |target: &&cargo_metadata::Target| target.is_lib() || target.is_bin();
        let mut pages = package.targets.iter().filter(is_page);
        let says = |page: &cargo_metadata::Target| {
            let text = fs::read_to_string(&page.src_path).unwrap();
            text.lines()
                .take_while(|line| line.starts_with("//!"))
                .any(|line| line == SAYS_WHAT_NOT)
        };
        assert!(pages.any(says), "{}: {SAYS_WHAT_NOT}", package.name);
    }
}

const SAYS_WHAT_NOT: &str = "//! # What it does not do";

#[test]
fn unsafe_code_is_forbidden_outside_its_places() {
    for page in FORBIDDING {
        let text = fs::read_to_string(root().join(page)).unwrap();
        assert!(text.lines().any(|line| line == "#![forbid(unsafe_code)]"), "{page}");
    }
}

#[test]
fn unsafe_code_stands_in_its_places_and_says_why() {
    let mut files = Vec::new();
    for folder in ["src", "drivers", "tests", "tools"] {
        rust_files(&root().join(folder), &mut files);
    }
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for file in files {
        let name = file.strip_prefix(root()).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let found = unsafe_lines(&text);
        seen += found.len();
        let may = UNSAFE_PLACES.iter().any(|place| name.starts_with(place));
        for Unsafe { line, says_why } in found {
            let what = if may { "without SAFETY" } else { "in a place that has none" };
            if !may || !says_why {
                wrong.push(format!("{}:{line}: unsafe {what}", name.display()));
            }
        }
    }
    assert!(seen >= 30, "only {seen} unsafe blocks were seen");
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn unsafe_code_is_found_where_it_is_and_nowhere_else() {
    let says = |text: &str| {
        unsafe_lines(text).iter().map(|found| (found.line, found.says_why)).collect::<Vec<_>>()
    };
    assert_eq!(says("// unsafe { }\nfn f() { \"unsafe {\"; r#\"unsafe\"#; unsafe_name() }"), []);
    assert_eq!(says("fn f() {\n    unsafe { g() }\n}"), [(2, false)]);
    assert_eq!(
        says("fn f() {\n    // SAFETY: why,\n    // in two lines.\n    unsafe { g() }\n}"),
        [(4, true)]
    );
    assert_eq!(
        says("fn f() {\n    // SAFETY: too far\n    h();\n    unsafe { g() }\n}"),
        [(4, false)]
    );
    assert_eq!(
        says(
            "fn f() {\n    #[allow(unsafe_code)]\n    // SAFETY: why\n    #[cfg(x)]\n    unsafe { g() }\n}"
        ),
        [(5, true)]
    );
    assert_eq!(says("/// Does.\n///\n/// # Safety\n/// Never.\npub unsafe fn f() {}"), [(5, true)]);
    assert_eq!(says("/// Does.\npub unsafe fn f() {}"), [(2, false)]);
    assert_eq!(says("unsafe impl Send for X {}"), [(1, false)]);
    assert_eq!(says("macro_rules! m { () => {\n unsafe { g() } } }"), [(2, false)]);
}

/// All `.rs` files below `folder`.
fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The word `unsafe` in code.
struct Unsafe {
    /// From 1.
    line: usize,
    /// The comment right above says why it is sound, or what its caller has to keep.
    says_why: bool,
}

/// Every `unsafe` of `text`, as the compiler's tokens have it: none in comments and strings.
fn unsafe_lines(text: &str) -> Vec<Unsafe> {
    let lines: Vec<&str> = text.lines().collect();
    let tokens: TokenStream = text.parse().unwrap();
    let mut found = Vec::new();
    collect(tokens, &mut found);
    found
        .into_iter()
        .map(|(line, is_function)| {
            let reason = if is_function { "/// # Safety" } else { "// SAFETY: " };
            let above = lines[..line - 1].iter().rev().map(|line| line.trim_start());
            let mut above =
                above.take_while(|line| line.starts_with("//") || line.starts_with("#["));
            Unsafe { line, says_why: above.any(|line| line.starts_with(reason)) }
        })
        .collect()
}

/// Lines of `unsafe`, and whether a function is declared there.
fn collect(tokens: TokenStream, found: &mut Vec<(usize, bool)>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => collect(group.stream(), found),
            TokenTree::Ident(word) if word == "unsafe" => {
                let is_function = matches!(tokens.peek(), Some(TokenTree::Ident(next)) if next == "fn" || next == "extern");
                found.push((word.span().start().line, is_function));
            }
            _ => {}
        }
    }
}
