//! The paths and identifiers of a source file. Comments, string literals and test code are skipped.

use std::iter::Peekable;
use std::path::Path;
use std::str::FromStr as _;

use proc_macro2::token_stream::IntoIter;
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// A path that a source names, with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// The enclosing modules of the path, from the crate's root.
    pub(crate) module: Vec<String>,
    /// The path as written.
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
    /// The name of the path in its module, if it is imported; `*` for a glob import.
    pub(crate) import: Option<String>,
}

/// The content of a file.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) named: Vec<Named>,
    /// All identifiers, and the lines that they are on.
    pub(crate) words: Vec<(String, usize)>,
    /// The out-of-line modules of tests.
    for_tests: Vec<Vec<String>>,
}

/// A module's file.
#[derive(Debug)]
pub(crate) struct File {
    /// Its path from the folder of the crate's root.
    pub(crate) path: String,
    /// `status/ring.rs` is `status::ring`; the root has no name.
    pub(crate) module: Vec<String>,
    pub(crate) source: Source,
}

/// Reads the files of a crate, each with its path from the folder of the root and its text.
pub(crate) fn read_all<'a>(files: impl IntoIterator<Item = (&'a Path, &'a str)>) -> Vec<File> {
    let file = |(path, text): (&Path, &str)| {
        let names = path.with_extension("");
        let module: Vec<_> = names.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        let module = if module == ["lib"] { Vec::new() } else { module };
        let source = read(&module, text);
        File { path: path.display().to_string(), module, source }
    };
    let mut all: Vec<File> = files.into_iter().map(file).collect();
    let for_tests: Vec<_> = all.iter().flat_map(|file| file.source.for_tests.clone()).collect();
    all.retain(|file| !for_tests.iter().any(|tests| file.module.starts_with(tests)));
    all
}

/// Reads the text of a module's file.
fn read(module: &[String], text: &str) -> Source {
    let tokens = TokenStream::from_str(text).unwrap_or_else(|error| panic!("{module:?}: {error}"));
    let mut source = Source::default();
    Reader { module: module.to_vec(), source: &mut source }.items(tokens);
    source
}

struct Reader<'a> {
    module: Vec<String>,
    source: &'a mut Source,
}

type Tokens = Peekable<IntoIter>;

impl Reader<'_> {
    fn items(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        // Set if the rest of a path follows whose first name is no module.
        let mut follows = false;
        while let Some(token) = tokens.next() {
            let is_rest = std::mem::take(&mut follows);
            self.word(Some(&token));
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => self.attribute(&mut tokens),
                TokenTree::Punct(punct) if punct.as_char() == ':' && punct.spacing() == Spacing::Joint => {
                    tokens.next();
                    follows = true;
                }
                TokenTree::Group(group) => self.items(group.stream()),
                TokenTree::Ident(ident) if ident == "mod" => self.inline_module(&mut tokens),
                TokenTree::Ident(ident) if ident == "use" => self.tree(&mut tokens, &[], true),
                TokenTree::Ident(ident) if !is_rest && is_path(&mut tokens) => {
                    self.rest(&mut tokens, vec![ident.to_string()], ident.span().start().line, false);
                }
                _ => {}
            }
        }
    }

    /// Skips items of `#[cfg(test)]`. The `#` is followed by `[…]`, or by an inner attribute `![…]`, which does not concern
    /// modules.
    fn attribute(&mut self, tokens: &mut Tokens) {
        let Some(TokenTree::Group(attribute)) = tokens.peek().cloned() else { return };
        tokens.next();
        let text = attribute.stream().to_string().replace(char::is_whitespace, "");
        if text != "cfg(test)" && !text.starts_with("cfg(all(test,") {
            return self.items(attribute.stream());
        }
        let mut last = None;
        for token in tokens.by_ref() {
            match &token {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => return,
                TokenTree::Punct(punct) if punct.as_char() == ';' => break,
                TokenTree::Ident(ident) => {
                    let is_module = last.as_deref() == Some("mod");
                    last = Some(ident.to_string());
                    if is_module {
                        self.source.for_tests.push([&self.module[..], &[ident.to_string()]].concat());
                    }
                }
                _ => {}
            }
        }
    }

    fn inline_module(&mut self, tokens: &mut Tokens) {
        self.word(tokens.peek());
        let Some(TokenTree::Ident(name)) = tokens.next() else { return };
        if let Some(TokenTree::Group(body)) = tokens.peek().cloned() {
            tokens.next();
            self.module.push(name.to_string());
            self.items(body.stream());
            self.module.pop();
        }
    }

    /// Reads one tree of paths, up to the comma or semicolon after it.
    fn tree(&mut self, tokens: &mut Tokens, before: &[String], is_import: bool) {
        self.word(tokens.peek());
        match tokens.next() {
            Some(TokenTree::Ident(ident)) => {
                let path = [before, &[ident.to_string()]].concat();
                self.rest(tokens, path, ident.span().start().line, is_import);
            }
            Some(TokenTree::Group(group)) => {
                let mut inside = group.stream().into_iter().peekable();
                while inside.peek().is_some() {
                    self.tree(&mut inside, before, is_import);
                    while inside.next_if(|token| !is_punct(token, ',')).is_some() {}
                    inside.next();
                }
            }
            Some(star) if is_punct(&star, '*') => {
                let line = star.span().start().line;
                self.name(before.to_vec(), line, Some("*".to_owned()));
            }
            // `use ::other_crate::…`
            _ => {}
        }
    }

    /// Reads the rest of a path of which the first names are read.
    fn rest(&mut self, tokens: &mut Tokens, mut path: Vec<String>, line: usize, is_import: bool) {
        while is_path(tokens) {
            tokens.next();
            tokens.next();
            self.word(tokens.peek());
            match tokens.peek() {
                Some(TokenTree::Ident(ident)) => path.push(ident.to_string()),
                _ if is_import => return self.tree(tokens, &path, true),
                _ => break,
            }
            tokens.next();
        }
        let mut import = path.last().cloned().filter(|_| is_import);
        // `use crate::error::{self, Error}`
        if is_import && path.len() > 1 && import.as_deref() == Some("self") {
            path.pop();
            import = path.last().cloned();
        }
        if is_import
            && tokens.next_if(|token| matches!(token, TokenTree::Ident(ident) if ident == "as")).is_some()
        {
            import = tokens.next().map(|name| name.to_string());
        }
        self.name(path, line, import);
    }

    fn word(&mut self, token: Option<&TokenTree>) {
        if let Some(TokenTree::Ident(word)) = token {
            self.source.words.push((word.to_string(), word.span().start().line));
        }
    }

    fn name(&mut self, path: Vec<String>, line: usize, import: Option<String>) {
        self.source.named.push(Named { module: self.module.clone(), path, line, import });
    }
}

fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

/// Returns whether `::` comes next.
fn is_path(tokens: &mut Tokens) -> bool {
    let is_joint = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':' && punct.spacing() == Spacing::Joint);
    tokens.peek().is_some_and(is_joint)
}
