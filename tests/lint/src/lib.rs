//! A page of documentation, taken apart: its sentences, its links, its fenced blocks, the places that links may lead to.
//!
//! `cargo run -p acequia-lint` holds every page, every comment and the structure of the code to their rules ([`rules`],
//! [`comments`], [`structure`]). The end-to-end tests run the blocks.

pub mod cargo;
pub mod comments;
pub mod metrics;
pub mod modules;
pub mod rules;
pub mod structure;

use std::collections::BTreeSet;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A page in Markdown, as a code host shows it.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// What stands in fences, in order.
    pub blocks: Vec<Block>,
    /// What stands between single backticks, in order, tables too.
    pub codes: Vec<String>,
    /// Where links and pictures lead.
    pub links: Vec<String>,
    /// Sentences of paragraphs and lists; none of tables, headings and fences.
    pub sentences: Vec<Sentence>,
    /// The names of headings, as links name them.
    pub anchors: BTreeSet<String>,
}

/// A fenced block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The heading that it stands under.
    pub heading: String,
    /// What the fence says of it, such as `sh`.
    pub kind: String,
    /// What it holds.
    pub text: String,
}

/// A sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sentence {
    /// As it is read, with code as `…`.
    pub text: String,
    /// How many words it has. A piece of code, a number and a link are a word each.
    pub words: usize,
}

impl Page {
    /// Takes a page apart.
    pub fn read(markdown: &str) -> Self {
        let mut page = Self::default();
        let (mut prose, mut heading, mut in_heading) = (String::new(), String::new(), false);
        // Within a table, nothing is a sentence.
        let mut in_table = false;
        let mut block: Option<Block> = None;
        for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Heading { .. }) => {
                    page.end_prose(&mut prose);
                    (in_heading, heading) = (true, String::new());
                }
                Event::End(TagEnd::Heading(_)) => {
                    in_heading = false;
                    page.anchors.insert(anchor(&heading));
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    page.end_prose(&mut prose);
                    let kind = match kind {
                        CodeBlockKind::Fenced(kind) => kind.into_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    block = Some(Block { heading: heading.clone(), kind, text: String::new() });
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Start(Tag::Table(_)) => {
                    page.end_prose(&mut prose);
                    in_table = true;
                }
                Event::End(TagEnd::Table) => in_table = false,
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Code(code) => {
                    if in_heading {
                        heading.push_str(&code);
                    } else if !in_table {
                        prose.push('…');
                    }
                    page.codes.push(code.into_string());
                }
                Event::Text(text) => match &mut block {
                    Some(block) => block.text.push_str(&text),
                    None if in_heading => heading.push_str(&text),
                    None if in_table => {}
                    None => prose.push_str(&text),
                },
                Event::SoftBreak => prose.push(' '),
                Event::HardBreak | Event::Rule => page.end_prose(&mut prose),
                Event::Start(Tag::Paragraph | Tag::Item | Tag::List(_))
                | Event::End(TagEnd::Paragraph | TagEnd::Item) => {
                    page.end_prose(&mut prose);
                }
                _ => {}
            }
        }
        page.end_prose(&mut prose);
        page
    }

    /// Ends a paragraph or an item of a list.
    fn end_prose(&mut self, prose: &mut String) {
        let mut words = Vec::new();
        for word in prose.split_whitespace() {
            words.push(word);
            let bare = word.trim_end_matches(['"', '\'', ')', '*', ']']);
            if bare.ends_with(['.', '!', '?']) {
                self.sentences.extend(Sentence::of(&words));
                words.clear();
            }
        }
        self.sentences.extend(Sentence::of(&words));
        prose.clear();
    }
}

impl Sentence {
    fn of(words: &[&str]) -> Option<Self> {
        let count = words
            .iter()
            .filter(|word| word.contains(|letter: char| letter.is_alphanumeric() || letter == '…'))
            .count();
        (count > 0).then(|| Self { text: words.join(" "), words: count })
    }
}

/// A heading as links name it on a code host: in small letters, words joined by `-`, without punctuation.
fn anchor(heading: &str) -> String {
    let kept =
        heading.trim().chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# One `page`\n\nA first sentence,\nin `code` too. A *second* one: see [there](other.md#x).\n\n\
        - an item\n- another one. With two\n\n| a table | of words that are none. |\n| --- | --- |\n| `x` | [y](z.md) |\n\n\
        ## What's, then?\n\n```sh\nacequia check\n```\n\n![picture](p.svg)\n";

    #[test]
    fn a_page_is_split_into_sentences_links_and_headings() {
        let page = Page::read(PAGE);
        let sentences: Vec<_> =
            page.sentences.iter().map(|sentence| (sentence.text.as_str(), sentence.words)).collect();
        assert_eq!(
            sentences,
            [
                ("A first sentence, in … too.", 6),
                ("A second one: see there.", 5),
                ("an item", 2),
                ("another one.", 2),
                ("With two", 2),
                ("picture", 1),
            ]
        );
        assert_eq!(page.links, ["other.md#x", "z.md", "p.svg"]);
        assert_eq!(page.codes, ["page", "code", "x"]);
        assert_eq!(page.anchors, ["one-page", "whats-then"].map(String::from).into());
        let block =
            Block { heading: "What's, then?".into(), kind: "sh".into(), text: "acequia check\n".into() };
        assert_eq!(page.blocks, [block]);
    }
}
