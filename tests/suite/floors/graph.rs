//! The graph of a crate's modules: which names something of which, and where.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::path::Path;

use super::reader::{File, Named, read_all};

/// A module, from the crate's root.
type Module = Vec<String>;

/// Imports of imports are followed so far.
const MOST_IMPORTS: usize = 8;

/// A line that makes an arrow.
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

/// From each room to those that it names, and the lines that do.
pub(crate) type Arrows = BTreeMap<String, BTreeMap<String, BTreeSet<Line>>>;

/// All that the sources of a crate name, and what modules there are.
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

    /// Returns the modules that have others in them; the root of the crate is one.
    pub(crate) fn parents(&self) -> BTreeSet<&[String]> {
        self.modules.iter().filter_map(|module| Some(module.split_last()?.1)).collect()
    }

    /// Returns the rooms right below a module, and the arrows between them. The module itself is none of them, since its parts may
    /// name what stands in it; but the root of the crate is one, and its name is `lib`.
    pub(crate) fn below(&self, module: &[String]) -> Arrows {
        let room = |inner: &[String]| match inner.strip_prefix(module)?.first() {
            None if module.is_empty() => Some("lib".to_owned()),
            room => room.cloned(),
        };
        let mut arrows: Arrows =
            self.modules.iter().filter_map(|inner| Some((room(inner)?, BTreeMap::new()))).collect();
        for (file, named) in &self.named {
            let Some(from) = room(&named.module) else { continue };
            let line = Line { file: file.clone(), number: named.line, path: named.path.join("::") };
            let reached = self.reached(&named.module, &named.path, 0);
            for to in reached.iter().filter_map(|reached| room(reached)).filter(|to| *to != from) {
                arrows.entry(from.clone()).or_default().entry(to).or_default().insert(line.clone());
            }
        }
        arrows
    }

    /// Returns the modules that a path leads to: the one that it names something of, and, if that is imported there, where it
    /// comes from.
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
        // Names that the root re-exports are not the root's.
        if is_ours && !(at.is_empty() && import.is_some()) {
            reached.push(at.clone());
        }
        if let Some(import) = import {
            reached.extend(self.reached(&at, &[import, &rest[1..]].concat(), imports + 1));
        }
        reached
    }
}

/// Returns the shortest circle, if there is one: rooms each of which names the next, and the last one the
/// first.
pub(crate) fn circle(arrows: &Arrows) -> Option<Vec<String>> {
    arrows.keys().filter_map(|room| circle_through(arrows, room)).min_by_key(Vec::len)
}

fn circle_through(arrows: &Arrows, room: &str) -> Option<Vec<String>> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([room]);
    while let Some(at) = queue.pop_front() {
        for next in arrows.get(at).into_iter().flat_map(BTreeMap::keys) {
            if next == room {
                let back = std::iter::successors(Some(at), |at| before.get(at).copied());
                let mut rooms: Vec<_> = back.map(str::to_owned).collect();
                rooms.reverse();
                return Some(rooms);
            }
            if !before.contains_key(&**next) {
                before.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}

/// Returns the arrows of a circle with the lines that make them.
pub(crate) fn told(arrows: &Arrows, circle: &[String]) -> String {
    let nexts = circle.iter().cycle().skip(1);
    circle.iter().zip(nexts).map(|(from, to)| arrow(arrows, from, to)).collect()
}

/// Returns an arrow with the lines that make it.
pub(crate) fn arrow(arrows: &Arrows, from: &str, to: &str) -> String {
    let lines: String = arrows[from][to].iter().map(|line| format!("    {line}\n")).collect();
    format!("{from} -> {to}\n{lines}")
}
