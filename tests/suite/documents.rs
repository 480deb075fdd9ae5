//! Tests of documents: links, the completeness of lists, and words that `STYLE` bans.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use unisono_testing::{suite::Test, tests};

use super::tidy::{files, files_in};

/// Phrases that documents avoid, since a plainer one exists. `exceptions.txt` lists the places that keep one.
const BANNED: [(&str, &str); 21] = [
    ("alike", "identical on all ranks"),
    ("as you like", "at your option"),
    ("each two", "every pair of"),
    ("hand-over", "context switch"),
    ("in the midst", "during, in the middle"),
    ("in turns", "alternating"),
    ("nobody", "no rank, no process, no other program"),
    ("nothing that", "only, none"),
    ("of one's own", "custom"),
    ("of so many", "of this many, n-"),
    ("of our own", "Unisono's"),
    ("our own", "Unisono's"),
    ("so many times", "this many times"),
    ("takes up", "uses, accepts"),
    ("to be had", "available"),
    ("what is said", "the message"),
    ("what speaks", "compatible with"),
    ("whatever", "any, every"),
    ("whoever", "the process that, the user who"),
    ("whom", "which rank"),
    ("will be able to", "can"),
];

/// Beginnings of a document's sentences that use a clause in place of a noun.
const OPENINGS: [&str; 6] = ["That for ", "That of ", "Those of ", "What ", "Whether ", "Who "];

/// Beginnings of comments that do so, or refer to another comment: readers see one alone.
const COMMENT_OPENINGS: [&str; 9] =
    ["How ", "Of ", "That for ", "That of ", "The same ", "Those ", "What ", "Who ", "Why "];

pub(crate) fn tests() -> Vec<Test> {
    tests![
        no_link_is_dead,
        every_page_is_in_the_summary,
        every_variable_is_listed,
        every_error_code_is_listed,
        plain_words,
        plain_words_in_comments,
        sizes,
    ]
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> String {
    let path = root().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks that every link to a file of the repository names an existing file, and every anchor a heading in it.
fn no_link_is_dead() {
    let mut dead = Vec::new();
    for (document, text) in files_in("md", "") {
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains(':')) {
            let (file, anchor) =
                link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let folder = document.parent().expect("a file is in a folder");
            let target = if file.is_empty() { document.clone() } else { folder.join(file) };
            let is_page = target.extension().is_some_and(|end| end == "md");
            let is_there = target.exists()
                && anchor
                    .filter(|_| is_page)
                    .is_none_or(|anchor| headings(&fs::read_to_string(&target).unwrap()).contains(anchor));
            if !is_there {
                dead.push(format!("{} links to {link}", document.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// Returns the anchors of a document's headings, as forges and mdBook form them.
fn headings(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        if let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) {
            let kept = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            anchors.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    anchors
}

/// Checks the summary: mdBook omits a page that its summary does not name.
fn every_page_is_in_the_summary() {
    let summary = page("docs/SUMMARY.md");
    for (path, _) in files_in("md", "docs") {
        let name = path.strip_prefix(root().join("docs")).unwrap().display().to_string();
        assert!(name == "SUMMARY.md" || summary.contains(&format!("]({name})")), "docs/{name}");
    }
}

/// Checks that the page of environment variables lists exactly the variables that the sources name.
fn every_variable_is_listed() {
    let mut read = BTreeSet::new();
    let sources = [files("src/config"), files_in("rs", "src"), files_in("c", "crates/preload/src")].concat();
    for (_, text) in sources {
        for quoted in text.split("\"UNISONO_").skip(1) {
            let name = quoted.split('"').next().unwrap_or_default();
            if name.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
                read.insert(format!("UNISONO_{name}"));
            }
        }
    }
    // Variables of builds and tests, and deliberately misspelled names in unit tests.
    for other in ["ALGORITM", "FUZZ", "SOAK", "TIMEOUT"] {
        assert!(read.remove(&format!("UNISONO_{other}")), "no source names UNISONO_{other}");
    }
    read.retain(|name| !name.starts_with("UNISONO_TEST_") && *name != "UNISONO_");
    let listed = page("docs/environment.md");
    let listed = listed.lines().filter_map(|line| line.strip_prefix("| `UNISONO_")?.split('`').next());
    let listed: BTreeSet<_> = listed.map(|name| format!("UNISONO_{name}")).collect();
    let differ: Vec<_> = listed.symmetric_difference(&read).collect();
    assert!(differ.is_empty(), "read or listed, and not both: {differ:?}");
}

/// Checks that the page of codes lists the codes of the library and of `unisono.h`.
fn every_error_code_is_listed() {
    let table = page("docs/codes.md");
    let header = page("crates/c/include/unisono.h");
    let in_c = header.lines().filter_map(|line| line.strip_prefix("#define UNISONO_ERROR_")?.split_once(' '));
    let in_c: Vec<_> = in_c.map(|(name, code)| format!("| {code} | `UNISONO_ERROR_{name}` |")).collect();
    let library = page("src/error/code.rs");
    let variants = library.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(" as "));
    let codes = variants.filter_map(|(_, code)| code.parse::<u32>().ok());
    let codes: Vec<_> = codes.map(|code| format!("| {code} | ")).collect();
    assert!(in_c.len() > 10 && codes.len() > 10, "{in_c:?} {codes:?}");
    for row in in_c.iter().chain(&codes) {
        assert!(table.contains(row), "docs/codes.md has no row `{row}`");
    }
}

/// Checks the words of documents. Decisions and the changelog are excluded as records of their time.
fn plain_words() {
    let exceptions = page("tests/suite/documents/exceptions.txt");
    let exceptions = exceptions.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut unused: BTreeSet<(String, String)> = exceptions
        .map(|line| match *line.split(" | ").collect::<Vec<_>>() {
            [file, phrase, reason] if reason.len() > 10 => (file.to_owned(), phrase.to_owned()),
            _ => panic!("`{line}` is not FILE | PHRASE | REASON"),
        })
        .collect();
    let mut found = Vec::new();
    for (path, text) in files_in("md", "") {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        if name == "CHANGELOG.md" || name.starts_with("docs/decisions/") {
            continue;
        }
        let allowed: Vec<_> = unused.iter().filter(|(file, _)| *file == name).cloned().collect();
        for (line, number) in prose(&text) {
            for (phrase, better) in phrases(&line).into_iter().chain(openings(&line)) {
                let exception = allowed.iter().find(|(_, allowed)| *allowed == phrase);
                match exception {
                    Some(exception) => drop(unused.remove(exception)),
                    None => found.push(format!("{name}:{number}: `{phrase}` ({better})")),
                }
            }
        }
    }
    assert!(found.is_empty(), "documents avoid these phrases:\n{}", found.join("\n"));
    assert!(unused.is_empty(), "these exceptions are not needed any more: {unused:?}");
}

/// Returns the lines of a document that are not code, with their numbers.
fn prose(text: &str) -> Vec<(String, usize)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        is_code ^= line.trim_start().starts_with("```");
        if !is_code {
            lines.push((line.split('`').step_by(2).collect::<Vec<_>>().join("`"), number));
        }
    }
    lines
}

/// Returns the banned phrases of a line, each with a better one.
fn phrases(line: &str) -> Vec<(String, &'static str)> {
    let lower = format!(" {} ", line.to_lowercase());
    let has = |phrase: &str| {
        lower.match_indices(phrase).any(|(at, _)| {
            let before = lower[..at].chars().next_back();
            let after = lower[at + phrase.len()..].chars().next();
            !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
        })
    };
    let banned = BANNED.iter().filter(|(phrase, _)| has(phrase));
    banned.map(|(phrase, better)| ((*phrase).to_owned(), *better)).collect()
}

/// Returns the banned openings of a line's sentences.
fn openings(line: &str) -> impl Iterator<Item = (String, &'static str)> {
    let sentences = line.split(". ").map(|sentence| sentence.trim_start_matches(['-', '*', ' ']));
    sentences.flat_map(|sentence| opening(sentence, &OPENINGS))
}

fn opening(sentence: &str, banned: &[&str]) -> Option<(String, &'static str)> {
    let opening = banned.iter().find(|opening| sentence.starts_with(*opening))?;
    Some((opening.trim().to_owned(), "begin with the noun"))
}

/// Checks the words and the openings of comments.
fn plain_words_in_comments() {
    let mut found = Vec::new();
    for language in ["rs", "c", "h", "hpp", "cpp", "py"] {
        for (path, text) in files_in(language, "") {
            let is_here = path.ends_with("tests/suite/documents.rs");
            for (line, number, is_first) in comments(&text, language).filter(|_| !is_here) {
                let opening =
                    Some(&line).filter(|_| is_first).and_then(|line| opening(line, &COMMENT_OPENINGS));
                for (phrase, better) in phrases(&line).into_iter().chain(opening) {
                    found.push(format!("{}:{number}: `{phrase}` ({better})", path.display()));
                }
            }
        }
    }
    assert!(found.is_empty(), "comments avoid these phrases:\n{}", found.join("\n"));
}

/// Returns the lines of a source that are comments, with their numbers, and whether a comment begins there.
fn comments<'a>(text: &'a str, language: &str) -> impl Iterator<Item = (String, usize, bool)> + use<'a> {
    let marks: &[&str] = match language {
        "py" => &["# "],
        "rs" => &["/// ", "//! ", "// "],
        _ => &["/// ", "// ", "/* ", "* "],
    };
    let mut was_comment = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let comment = marks.iter().find_map(|mark| line.trim_start().strip_prefix(mark));
        let is_first = comment.is_some() && !was_comment;
        was_comment = comment.is_some();
        Some((comment?.to_owned(), number, is_first))
    })
}

/// Checks that the most read pages stay short.
fn sizes() {
    for (name, most) in [("README.md", 7 << 10), ("ARCHITECTURE.md", 10 << 10)] {
        let bytes = page(name).len();
        assert!(bytes <= most, "{name} has {bytes} bytes, and may have {most}");
    }
}
