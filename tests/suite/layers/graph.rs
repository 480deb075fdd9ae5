//! The dependency graph of a crate's modules.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::path::Path;

use super::reader::{File, Named, read_all};

/// A module, from the crate's root.
type Module = Vec<String>;

/// The number of re-exports that are followed.
const MOST_IMPORTS: usize = 8;

/// A line that creates a dependency.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line {
    file: String,
    number: usize,
    path: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.number, self.path)
    }
}

/// The dependencies of each module, with the lines that create them.
pub(crate) type Dependencies = BTreeMap<String, BTreeMap<String, BTreeSet<Line>>>;

/// The modules of a crate, and the paths that they name.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    modules: BTreeSet<Module>,
    /// The paths of the names that a module imports.
    imports: BTreeMap<(Module, String), Vec<String>>,
    named: Vec<(String, Named)>,
}

impl Graph {
    /// Returns the graph of the crate with these files.
    pub(crate) fn new<'a>(sources: impl IntoIterator<Item = (&'a Path, &'a str)>) -> Self {
        let mut graph = Self::default();
        for File { path, module, source } in read_all(sources) {
            graph.modules.extend((0..=module.len()).map(|length| module[..length].to_vec()));
            for named in source.named {
                graph.modules.insert(named.module.clone());
                if let Some(import) = &named.import {
                    graph.imports.insert((named.module.clone(), import.clone()), named.path.clone());
                }
                graph.named.push((path.clone(), named));
            }
        }
        graph
    }

    /// Returns the modules that have child modules, including the root of the crate.
    pub(crate) fn parents(&self) -> BTreeSet<&[String]> {
        self.modules.iter().filter_map(|module| Some(module.split_last()?.1)).collect()
    }

    /// Returns the child modules of a module, and the dependencies between them. The module itself is excluded, since its children
    /// may use its items. The root of the crate is included, as `lib`.
    pub(crate) fn below(&self, module: &[String]) -> Dependencies {
        let child = |inner: &[String]| match inner.strip_prefix(module)?.first() {
            None if module.is_empty() => Some("lib".to_owned()),
            child => child.cloned(),
        };
        let mut dependencies: Dependencies =
            self.modules.iter().filter_map(|inner| Some((child(inner)?, BTreeMap::new()))).collect();
        for (file, named) in &self.named {
            let Some(from) = child(&named.module) else { continue };
            let line = Line { file: file.clone(), number: named.line, path: named.path.join("::") };
            let reached = self.reached(&named.module, &named.path, 0);
            for to in reached.iter().filter_map(|reached| child(reached)).filter(|to| *to != from) {
                dependencies.entry(from.clone()).or_default().entry(to).or_default().insert(line.clone());
            }
        }
        dependencies
    }

    /// Returns the modules to which a path leads: the module whose item it names, and the origin of the item if that module imports
    /// it.
    fn reached(&self, module: &[String], path: &[String], imports: usize) -> Vec<Module> {
        let (mut at, mut rest, mut is_ours) = (module.to_vec(), path, false);
        while let Some((name, others)) = rest.split_first() {
            match name.as_str() {
                "crate" => at.clear(),
                "super" => drop(at.pop()),
                "self" => {}
                name => {
                    at.push(name.to_owned());
                    if !self.modules.contains(&at) {
                        at.pop();
                        break;
                    }
                }
            }
            (rest, is_ours) = (others, true);
        }
        let import = rest.first().and_then(|name| self.imports.get(&(at.clone(), name.clone())));
        let import = import.filter(|import| *import != path && imports < MOST_IMPORTS);
        let mut reached = Vec::new();
        // Names that the root re-exports do not belong to the root.
        if is_ours && !(at.is_empty() && import.is_some()) {
            reached.push(at.clone());
        }
        if let Some(import) = import {
            reached.extend(self.reached(&at, &[import, &rest[1..]].concat(), imports + 1));
        }
        reached
    }
}

/// Returns the shortest cycle, if there is one: modules each of which depends on the next, and the last one on the first.
pub(crate) fn find_cycle(dependencies: &Dependencies) -> Option<Vec<String>> {
    dependencies.keys().filter_map(|child| cycle_through(dependencies, child)).min_by_key(Vec::len)
}

fn cycle_through(dependencies: &Dependencies, child: &str) -> Option<Vec<String>> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([child]);
    while let Some(at) = queue.pop_front() {
        for next in dependencies.get(at).into_iter().flat_map(BTreeMap::keys) {
            if next == child {
                let back = std::iter::successors(Some(at), |at| before.get(at).copied());
                let mut modules: Vec<_> = back.map(str::to_owned).collect();
                modules.reverse();
                return Some(modules);
            }
            if !before.contains_key(&**next) {
                before.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}

/// Formats the dependencies of a cycle with the lines that create them.
pub(crate) fn format_cycle(dependencies: &Dependencies, cycle: &[String]) -> String {
    let nexts = cycle.iter().cycle().skip(1);
    cycle.iter().zip(nexts).map(|(from, to)| format_dependency(dependencies, from, to)).collect()
}

/// Formats a dependency with the lines that create it.
pub(crate) fn format_dependency(dependencies: &Dependencies, from: &str, to: &str) -> String {
    let lines: String = dependencies[from][to].iter().map(|line| format!("    {line}\n")).collect();
    format!("{from} -> {to}\n{lines}")
}
