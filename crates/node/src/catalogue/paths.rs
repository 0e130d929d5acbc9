//! The paths of a domain's limits as one tree: of several that fit a descriptor, the most specific applies.
//!
//! At each level an equal value goes before a pattern, and a pattern before a key alone; of several patterns the one
//! goes first that was written first. The walk never turns back, as in
//! [envoyproxy/ratelimit](https://github.com/envoyproxy/ratelimit): where it ends, either limits are found or none.

use acequia_limits::{Limit, descriptor::Entry, path::Step, pattern::Pattern};

use super::byte_map::ByteMap;

/// The limits of a domain that have paths. The numbers are indexes into the catalogue.
#[derive(Debug, Default)]
pub(crate) struct PathTree {
    root: PathLevel,
}

/// What may follow the same beginning of a path.
#[derive(Debug, Default)]
struct PathLevel {
    keys: ByteMap<PathChoice>,
}

/// What a key's value leads to.
#[derive(Debug, Default)]
struct PathChoice {
    literals: ByteMap<PathNode>,
    /// In the order of the limits.
    patterns: Vec<PathPattern>,
    /// For values that nothing else fits.
    any: Option<Box<PathNode>>,
}

#[derive(Debug)]
struct PathPattern {
    pattern: Pattern,
    node: PathNode,
}

/// The end of a path, or a step on the way.
#[derive(Debug, Default)]
struct PathNode {
    /// More than one only while a limit of another shape replaces its predecessor.
    limits: Vec<u32>,
    next: PathLevel,
}

impl PathTree {
    /// Adds a limit. Its path hides less specific ones even if the limit is off and `number` is `None`.
    pub(crate) fn add(&mut self, limit: &Limit, number: Option<u32>) {
        let Some((last, before)) = limit.path.as_ref().and_then(|path| path.steps().split_last()) else {
            return;
        };
        let level = before.iter().fold(&mut self.root, |level, step| &mut level.node(step).next);
        level.node(last).limits.extend(number);
    }

    /// The limits whose path fits a descriptor best.
    pub(crate) fn find(&self, entries: &[Entry<'_>]) -> &[u32] {
        let Some((last, before)) = entries.split_last() else { return &[] };
        let mut level = &self.root;
        for entry in before {
            match level.follow(*entry) {
                Some(node) => level = &node.next,
                None => return &[],
            }
        }
        level.follow(*last).map_or(&[], |node| &node.limits)
    }
}

impl PathLevel {
    fn node(&mut self, step: &Step) -> &mut PathNode {
        let choice = self.keys.get_or_default(step.key.as_bytes());
        match &step.value {
            None => choice.any.get_or_insert_default(),
            Some(Pattern::Literal(value)) => choice.literals.get_or_default(value.as_bytes()),
            Some(pattern) => {
                let known = choice.patterns.iter().position(|known| known.pattern == *pattern);
                let place = known.unwrap_or_else(|| {
                    choice.patterns.push(PathPattern { pattern: pattern.clone(), node: PathNode::default() });
                    choice.patterns.len() - 1
                });
                &mut choice.patterns[place].node
            }
        }
    }

    fn follow(&self, (key, value): Entry<'_>) -> Option<&PathNode> {
        let choice = self.keys.get(key)?;
        let by_pattern =
            || choice.patterns.iter().find(|known| known.pattern.matches(value)).map(|known| &known.node);
        choice.literals.get(value).or_else(by_pattern).or(choice.any.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use acequia_limits::{limit::LimitSpec, path::StepSpec};

    use super::*;

    fn limit(steps: &[(&str, &str)]) -> Limit {
        let spec = serde_json::json!({
            "name": "a", "domain": "d", "fixed_window": { "limit": 1, "window": "1s" },
        });
        let mut spec: LimitSpec = serde_json::from_value(spec).expect("a limit");
        let step = |(key, value): &(&str, &str)| StepSpec {
            key: (*key).to_owned(),
            value: (!value.is_empty()).then(|| (*value).to_owned()),
            shared: false,
            in_metrics: false,
        };
        spec.path = steps.iter().map(step).collect();
        Limit::new(spec).expect("a limit")
    }

    /// The limits that a tree of these paths finds, by their places in the list; a path marked as off has none.
    fn found(paths: &[&[(&str, &str)]], off: usize, entries: &[(&str, &str)]) -> Vec<u32> {
        let mut tree = PathTree::default();
        for (number, path) in (0..).zip(paths) {
            tree.add(&limit(path), (number as usize != off).then_some(number));
        }
        let entries: Vec<Entry<'_>> = entries.iter().map(|(k, v)| (k.as_bytes(), v.as_bytes())).collect();
        tree.find(&entries).to_vec()
    }

    #[test]
    fn an_equal_value_goes_before_a_pattern_and_a_pattern_before_a_key() {
        let paths: &[&[(&str, &str)]] =
            &[&[("k", "")], &[("k", "x*")], &[("k", "xy*")], &[("k", "xyz")], &[("l", "")]];
        let of = |value| found(paths, usize::MAX, &[("k", value)]);
        assert_eq!(
            [of("xyz"), of("xyw"), of("xa"), of("a"), of("")],
            [vec![3], vec![1], vec![1], vec![0], vec![0]]
        );
        assert_eq!(found(paths, usize::MAX, &[("l", "1")]), [4]);
        assert_eq!(found(paths, usize::MAX, &[("m", "1")]), Vec::<u32>::new());
        assert_eq!(found(paths, usize::MAX, &[]), Vec::<u32>::new());
    }

    #[test]
    fn a_walk_that_took_a_value_never_turns_back_to_the_key() {
        let paths: &[&[(&str, &str)]] = &[&[("k", "")], &[("k", ""), ("m", "")], &[("k", "x"), ("n", "")]];
        let of = |entries: &[(&str, &str)]| found(paths, usize::MAX, entries);
        assert_eq!(of(&[("k", "y"), ("m", "1")]), [1]);
        assert_eq!(of(&[("k", "x"), ("n", "1")]), [2]);
        assert_eq!(of(&[("k", "x"), ("m", "1")]), Vec::<u32>::new(), "k=x leads to n alone");
        assert_eq!(of(&[("k", "x")]), Vec::<u32>::new(), "k=x has no limit of its own");
        assert_eq!(of(&[("k", "y"), ("m", "1"), ("m", "1")]), Vec::<u32>::new(), "deeper than any path");
    }

    #[test]
    fn a_limit_that_is_off_hides_less_specific_ones() {
        let paths: &[&[(&str, &str)]] = &[&[("k", "")], &[("k", "x")]];
        assert_eq!(found(paths, 1, &[("k", "x")]), Vec::<u32>::new());
        assert_eq!(found(paths, usize::MAX, &[("k", "x")]), [1]);
    }
}
