//! What comments in Rust files are held to: sentences that are read once.

use std::{fs, io, path::Path};

use crate::{Page, rules::files_below};

/// A sentence of a comment has at most so many words.
pub const WORDS_MAX: usize = 35;
/// The sentences of a file's comments have at most so many words on average.
pub const WORDS_MEAN_MAX: f64 = 18.0;
/// How sentences begin that have no noun where a reader looks for one.
const OPENERS: [&str; 3] = ["The same ", "Of ", "Since when "];
/// Files that a program writes.
const GENERATED: &str = "crates/api/src/generated/";

/// Faults in the comments of all Rust files below a folder: a line each.
///
/// # Errors
/// A file cannot be read.
pub fn faults(root: &Path) -> io::Result<Vec<String>> {
    let mut faults = Vec::new();
    for path in files_below(root, ".rs")? {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if !name.starts_with(GENERATED) {
            let text = fs::read_to_string(&path)?;
            faults.extend(faults_in(&text).into_iter().map(|fault| format!("{name}: {fault}")));
        }
    }
    Ok(faults)
}

/// Faults in the comments of one file.
fn faults_in(text: &str) -> Vec<String> {
    let sentences: Vec<_> = comments(text).iter().flat_map(|comment| Page::read(comment).sentences).collect();
    let mut faults = Vec::new();
    for sentence in &sentences {
        if sentence.words > WORDS_MAX {
            faults.push(format!("{} words, at most {WORDS_MAX}: {}", sentence.words, sentence.text));
        }
        if begins_without_noun(&sentence.text) {
            faults.push(format!("begins without a noun: {}", sentence.text));
        }
    }
    let words: usize = sentences.iter().map(|sentence| sentence.words).sum();
    let mean = words as f64 / sentences.len().max(1) as f64;
    if mean > WORDS_MEAN_MAX {
        faults.push(format!("{mean:.1} words a sentence on average, at most {WORDS_MEAN_MAX}"));
    }
    faults
}

fn begins_without_noun(sentence: &str) -> bool {
    OPENERS.iter().any(|opener| sentence.starts_with(opener))
        || (sentence.starts_with("Whether ") && sentence.contains("since when"))
}

/// The comments of a file, without their marks: lines that follow each other and have one mark are one comment.
fn comments(text: &str) -> Vec<String> {
    let mut comments: Vec<String> = Vec::new();
    let mut last = None;
    for line in text.lines() {
        let comment = ["///", "//!", "//"]
            .into_iter()
            .find_map(|mark| Some((mark, line.trim_start().strip_prefix(mark)?)));
        if let Some((mark, rest)) = comment {
            if last != Some(mark) {
                comments.push(String::new());
            }
            if let Some(open) = comments.last_mut() {
                open.push_str(rest.strip_prefix(' ').unwrap_or(rest));
                open.push('\n');
            }
        }
        last = comment.map(|(mark, _)| mark);
    }
    comments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_found_without_their_marks() {
        let text = "//! One page.\n//! It goes on.\n\nfn f() {\n    // A line,\n    // and another.\n    /// A third.\n}\n";
        assert_eq!(comments(text), ["One page.\nIt goes on.\n", "A line,\nand another.\n", "A third.\n"]);
    }

    #[test]
    fn sentences_without_a_noun_or_with_too_many_words_are_named() {
        let faults = |comment: &str| faults_in(&format!("/// {comment}\nfn f() {{}}\n"));
        assert_eq!(faults("The cell's owner. Offsets begin at 0."), [""; 0]);
        for opener in ["The same of a window.", "Of windows, none.", "Whether it holds, and since when."] {
            assert_eq!(faults(opener), [format!("begins without a noun: {opener}")]);
        }
        let long = vec!["word"; WORDS_MAX + 1].join(" ");
        let long = faults(&format!("{long}. A short one. A short one. A short one."));
        assert_eq!(long.len(), 1, "{long:?}");
        assert!(long[0].starts_with("36 words, at most 35: word"), "{long:?}");
        let dense = vec!["word"; WORDS_MAX].join(" ");
        assert_eq!(faults(&dense), ["35.0 words a sentence on average, at most 18"]);
    }

    #[test]
    fn code_in_comments_is_not_read_as_sentences() {
        let text = "/// ```\n/// Of course this is code\n/// ```\n/// A sentence.\nfn f() {}\n";
        assert_eq!(faults_in(text), [""; 0]);
    }
}
