//! The parts of a config that can be read independently: each limit, and each other field. If a part cannot
//! be read, the rest is read without it, so that an operator learns of every fault at once.

use std::ops::Range;

use granit_parser::{Event, Parser, Span, StructureStyle};

use crate::settings::SETTINGS;

/// A part of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The part's place in the text, in bytes. A field's place includes its name.
    place: Range<usize>,
    /// The part's lines, from 1.
    lines: Range<u64>,
    /// The name and the domain, if the part is a limit.
    limit: Option<[String; 2]>,
}

impl Part {
    /// Whether the part is a limit.
    pub(super) fn is_limit(&self) -> bool {
        self.limit.is_some()
    }

    /// Whether a line belongs to the part.
    pub(super) fn has_line(&self, line: u64) -> bool {
        self.lines.contains(&line)
    }

    /// The text without this part, in as many lines. A limit is replaced by a valid one with the same name.
    pub(super) fn left_out(&self, text: &str) -> String {
        let stub = self.limit.as_ref().map_or_else(String::new, |[name, domain]| {
            let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
            format!(
                "{{ name: {}, domain: {}, token_bucket: {{ rate: 1/s, burst: 1 }} }}",
                quoted(name),
                quoted(domain)
            )
        });
        let lines = "\n".repeat(text[self.place.clone()].matches('\n').count());
        [&text[..self.place.start], &stub, &lines, &text[self.place.end..]].concat()
    }
}

/// The parts of a text; none if the text is no mapping that is written in lines.
pub(super) fn parts(text: &str) -> Vec<Part> {
    let mut events = Parser::new_from_str(text).map_while(Result::ok);
    let root = events.by_ref().find(|(event, _)| event.is_node());
    let Some(root) = root.and_then(|(event, span)| Node::read(event, span, &mut events, 0)) else {
        return Vec::new();
    };
    let Value::Mapping(fields, StructureStyle::Block) = root.value else { return Vec::new() };
    let mut parts = Vec::new();
    for (key, value) in fields {
        match value.value {
            Value::List(items) if key.text() == "limits" => {
                parts.extend(items.into_iter().map(|item| Part {
                    // A limit without a name gets its line as a name: the missing name is reported already.
                    limit: Some(["name", "domain"].map(|field| match item.field(field) {
                        "" => format!("line-{}", item.lines.start),
                        text => text.to_owned(),
                    })),
                    place: item.place,
                    lines: item.lines,
                }))
            }
            _ => parts.push(Part {
                place: key.place.start..key.place.end.max(value.place.end),
                lines: key.lines.start..key.lines.end.max(value.lines.end),
                limit: None,
            }),
        }
    }
    parts
}

/// A node of the text, up to the end of its last word.
struct Node {
    place: Range<usize>,
    lines: Range<u64>,
    value: Value,
}

enum Value {
    Text(String),
    List(Vec<Node>),
    Mapping(Vec<(Node, Node)>, StructureStyle),
}

impl Node {
    fn read<'t>(
        event: Event<'t>,
        span: Span,
        events: &mut impl Iterator<Item = (Event<'t>, Span)>,
        depth: usize,
    ) -> Option<Self> {
        if depth > SETTINGS.reading.depth_max {
            return None;
        }
        let lines = span.start.line() as u64..span.end.line() as u64 + 1;
        let mut node = Self { place: span.byte_range()?, lines, value: Value::Text(String::new()) };
        match event {
            Event::Scalar(text, ..) => node.value = Value::Text(text.into_owned()),
            Event::SequenceStart(style, ..) => {
                let mut items = Vec::new();
                while let Some(item) = node.next(style, events, depth)? {
                    items.push(item);
                }
                node.value = Value::List(items);
            }
            Event::MappingStart(style, ..) => {
                let mut fields = Vec::new();
                while let Some(key) = node.next(style, events, depth)? {
                    fields.push((key, node.next(style, events, depth)??));
                }
                node.value = Value::Mapping(fields, style);
            }
            _ => {}
        }
        Some(node)
    }

    /// Reads the next node inside this one, and extends this one to include it. The inner option is `None` at
    /// the end of this one, the outer one on a fault.
    fn next<'t>(
        &mut self,
        style: StructureStyle,
        events: &mut impl Iterator<Item = (Event<'t>, Span)>,
        depth: usize,
    ) -> Option<Option<Self>> {
        let (event, span) = events
            .find(|(event, _)| event.is_node() || matches!(event, Event::SequenceEnd | Event::MappingEnd))?;
        if event.is_node() {
            let node = Self::read(event, span, events, depth + 1)?;
            self.place.end = self.place.end.max(node.place.end);
            self.lines.end = self.lines.end.max(node.lines.end);
            return Some(Some(node));
        }
        // A block ends with its last word, and not where the next block begins.
        if style == StructureStyle::Flow {
            self.place.end = span.byte_range()?.end;
            self.lines.end = span.end.line() as u64 + 1;
        }
        Some(None)
    }

    fn text(&self) -> &str {
        match &self.value {
            Value::Text(text) => text,
            Value::List(_) | Value::Mapping(..) => "",
        }
    }

    /// The text of a field of a mapping.
    fn field(&self, name: &str) -> &str {
        let Value::Mapping(fields, _) = &self.value else { return "" };
        fields.iter().find(|(key, _)| key.text() == name).map_or("", |(_, value)| value.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
region: eu
listen:
  grpc: x
  http: y

# a comment
limits:
  - name: a
    domain: shop
    by: [k]

  - { name: b, domain: shop }
  - name: it's
memory: 1
";

    #[test]
    fn each_limit_and_each_other_field_of_a_file_is_a_part() {
        let parts = parts(TEXT);
        let written: Vec<&str> = parts.iter().map(|part| &TEXT[part.place.clone()]).collect();
        let expected = [
            "region: eu",
            "listen:\n  grpc: x\n  http: y",
            "name: a\n    domain: shop\n    by: [k]",
            "{ name: b, domain: shop }",
            "name: it's",
            "memory: 1",
        ];
        assert_eq!(written, expected);
        let lines: Vec<Range<u64>> = parts.iter().map(|part| part.lines.clone()).collect();
        assert_eq!(lines, [1..2, 2..5, 8..11, 12..13, 13..14, 14..15]);
    }

    #[test]
    fn a_part_that_is_removed_leaves_other_line_numbers_unchanged() {
        for (number, part) in parts(TEXT).into_iter().enumerate() {
            let text = part.left_out(TEXT);
            assert_eq!(text.lines().count(), TEXT.lines().count(), "{number}");
            let left = parts(&text);
            assert_eq!(left.len(), parts(TEXT).len() - usize::from(!part.is_limit()), "{text}");
            assert!(left.iter().any(|other| other.lines == (14..15)) || number == 5, "{text}");
        }
        let limit = &parts(TEXT)[4];
        assert!(limit.left_out(TEXT).contains("name: 'it''s'"), "{}", limit.left_out(TEXT));
        assert_eq!(parts("{ a: 1 }"), []);
        assert_eq!(parts("- a"), []);
    }
}
