//! Keeps the text of values: YAML reads an unquoted `NO` as false, `1.10` as 1.1 and `0x1F` as 31, and a
//! limit on such a value would match nothing.

use std::borrow::Cow;

use granit_parser::{Event, Parser, ScalarStyle};

/// A config in which every unquoted scalar that YAML would take for a number or a truth is in quotes. Lines
/// stay the same. Fields that want a number take one in quotes, too.
///
/// A text that is not YAML comes back unchanged from the first fault on: the reader reports the fault.
pub(super) fn quoted(text: &str) -> Cow<'_, str> {
    let mut quoted = String::new();
    let mut copied = 0;
    for event in Parser::new_from_str(text) {
        let Ok((event, span)) = event else { break };
        let Event::Scalar(value, ScalarStyle::Plain, _, None) = event else { continue };
        let Some(place) = span.byte_range().filter(|place| place.start >= copied) else { continue };
        // A scalar over several lines is no number.
        if is_typed(&value) && text.get(place.clone()) == Some(&*value) {
            quoted.push_str(&text[copied..place.start]);
            quoted.push('\'');
            quoted.push_str(&value);
            quoted.push('\'');
            copied = place.end;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    quoted.push_str(&text[copied..]);
    Cow::Owned(quoted)
}

/// Whether YAML 1.1 or 1.2 may read a plain scalar as a number or a truth. Such a scalar has no quotes in it.
/// Null (`null`, `~`) stays null, since fields may be left out that way.
fn is_typed(text: &str) -> bool {
    let words = ["true", "false", "yes", "no", "on", "off", "y", "n"];
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    (is_number && !text.contains('\'')) || words.iter().any(|word| text.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_yaml_would_misread_are_quoted() {
        for (text, written) in [
            ("a: NO\nb: [1.10, 01234, x]\n", "a: 'NO'\nb: ['1.10', '01234', x]\n"),
            ("{a: 0x1F, b: yes, c: \"on\", d: 'off'}", "{a: '0x1F', b: 'yes', c: \"on\", d: 'off'}"),
            ("a: null\nb: ~\nc:\n", "a: null\nb: ~\nc:\n"),
            ("a: &x 5\nb: *x\n", "a: &x '5'\nb: *x\n"),
            ("é: 1\nü: 2 # 3\n", "é: '1'\nü: '2' # 3\n"),
            ("a: 60/s\n", "a: '60/s'\n"),
            ("- 5's\n- .inf\n- -.5e3\n", "- 5's\n- '.inf'\n- '-.5e3'\n"),
            ("a: |\n  12\n", "a: |\n  12\n"),
            ("a: 1\n  2\n", "a: 1\n  2\n"),
            ("a: !!int 5\n", "a: !!int 5\n"),
            ("a: 1\nb: [2\n", "a: '1'\nb: [2\n"),
            ("no: 1\n", "'no': '1'\n"),
        ] {
            assert_eq!(quoted(text), written);
        }
    }
}
