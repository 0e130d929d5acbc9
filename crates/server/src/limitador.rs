//! A limits file of [limitador](https://github.com/Kuadrant/limitador), read as limits.
//!
//! Conditions are expressions of [CEL](https://cel.dev). Those of the forms that most files have are read: an entry of
//! the first descriptor, compared by `==`, `!=` or `in` with text, and joined by `&&`. All others are refused.

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::{
    Limit,
    limit::{BySpec, FixedWindowSpec, LimitSpec, ValueSpec},
};
use serde::{Deserialize, de};

use crate::{imported_name::ImportedName, settings::SETTINGS};

/// What has another effect here, whatever the file.
pub const LIMITADOR_DIFFERENCES: [&str; 3] = [
    "a condition looks at the first descriptor of a request there, and at each of them here",
    "a window begins with the first hit there, and at a multiple of its length since 1970 here",
    "a limit's numbers are its identity there, and its name is here: give limits names before you change numbers",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLimit {
    namespace: String,
    max_value: u64,
    seconds: u64,
    name: Option<String>,
    id: Option<String>,
    conditions: Option<Vec<String>>,
    variables: Option<Vec<String>>,
    policy: Option<de::IgnoredAny>,
}

/// Reads a file; `source` is its name.
///
/// # Errors
/// Every limit that cannot be read, with what to do.
pub fn read_limits(source: &str, text: &str) -> Result<Vec<LimitSpec>, Vec<String>> {
    let nodes_max = SETTINGS.reading.nodes_max;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: nodes_max, max_events: 2 * nodes_max },
    };
    let written: Vec<WrittenLimit> = serde_saphyr::from_str_with_options(text, options).map_err(|fault| {
        let line = fault.location().map_or(0, |at| at.line());
        let said = fault.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter);
        vec![format!("{source}:{line}: {}", said.lines().next().unwrap_or("this is no limits file"))]
    })?;
    let (mut limits, mut faults) = (Vec::new(), Vec::new());
    let mut names: BTreeSet<(String, String)> = BTreeSet::new();
    for (place, written) in written.into_iter().enumerate() {
        let told = |what: String| format!("{source}: limit {}: {what}", place + 1);
        match limit(written) {
            Ok(limit) if names.insert((limit.domain.clone(), limit.name.clone())) => limits.push(limit),
            Ok(limit) => {
                faults.push(told(format!("{} is there twice: name one, or leave it out", limit.name)))
            }
            Err(what) => faults.push(told(what)),
        }
    }
    if faults.is_empty() { Ok(limits) } else { Err(faults) }
}

fn limit(written: WrittenLimit) -> Result<LimitSpec, String> {
    let WrittenLimit { namespace, max_value, seconds, name, id, conditions, variables, policy } = written;
    if seconds == 0 {
        return Err("a window of 0 s: write 1 or more".to_owned());
    }
    if policy.is_some() {
        return Err("`policy` is not read: leave it out".to_owned());
    }
    let mut when: BTreeMap<String, Wanted> = BTreeMap::new();
    for condition in conditions.unwrap_or_default() {
        for Comparison { key, wanted } in Parser::new(&condition).comparisons()? {
            let known = when.entry(key.clone()).or_default();
            if known.any.is_some() && wanted.any.is_some() {
                return Err(format!("{key} is compared twice: leave out the condition that says less"));
            }
            known.any = known.any.take().or(wanted.any);
            known.none.extend(wanted.none);
        }
    }
    let variables = variables.unwrap_or_default();
    let by: Result<Vec<BySpec>, String> =
        variables.iter().map(|variable| Parser::new(variable).variable().map(BySpec::Key)).collect();
    let (by, when) = (by?, when.into_iter().map(|(key, wanted)| Ok((key, wanted.spec()?))));
    let when: BTreeMap<String, ValueSpec> = when.collect::<Result<_, String>>()?;
    let name = name.or(id).map_or_else(
        || derived_name(&when, &by, seconds),
        |name| {
            let mut text = ImportedName::default();
            text.push(&name);
            text.finish()
        },
    );
    let window = FixedWindowSpec { limit: max_value, window: format!("{seconds}s"), stagger: false };
    let spec =
        LimitSpec { name, domain: namespace, when, by, fixed_window: Some(window), ..LimitSpec::default() };
    match Limit::new(spec.clone()) {
        Ok(_) => Ok(spec),
        Err(faults) => Err(faults.into_iter().map(|fault| fault.what).collect::<Vec<_>>().join("; ")),
    }
}

/// A name for a limit without one: `60s,method=GET,user`.
fn derived_name(when: &BTreeMap<String, ValueSpec>, by: &[BySpec], seconds: u64) -> String {
    let mut name = ImportedName::default();
    name.push(&format!("{seconds}s"));
    for (key, values) in when {
        name.sign(',');
        name.push(key);
        name.sign('=');
        name.push(&values.texts().join("|"));
    }
    for by in by {
        name.sign(',');
        name.push(by.key());
    }
    name.finish()
}

/// What is wanted of an entry's value.
#[derive(Default)]
struct Wanted {
    any: Option<Vec<String>>,
    none: Vec<String>,
}

impl Wanted {
    fn spec(self) -> Result<ValueSpec, String> {
        let any = self.any.unwrap_or_default();
        if let Some(text) = any.iter().chain(&self.none).find(|text| text.contains('*')) {
            return Err(format!(
                "{text:?} has a `*`, which stands for any text here: leave the condition out"
            ));
        }
        let escape = |text: String| if text.starts_with(['!', '\\']) { format!("\\{text}") } else { text };
        let none = self.none.into_iter().map(|text| format!("!{text}"));
        Ok(ValueSpec::Texts(any.into_iter().map(escape).chain(none).collect()))
    }
}

/// An entry of the first descriptor, compared with text.
struct Comparison {
    key: String,
    wanted: Wanted,
}

/// Reads the expressions that are understood.
struct Parser<'a> {
    whole: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self { whole: text, rest: text.trim() }
    }

    fn fault(&self) -> String {
        format!(
            "{:?} is not understood: write descriptors[0]['key'] == 'value', or `!=`, or `in ['a', 'b']`, joined by &&",
            self.whole
        )
    }

    /// Comparisons, joined by `&&`.
    fn comparisons(mut self) -> Result<Vec<Comparison>, String> {
        let mut all = Vec::new();
        loop {
            all.push(self.comparison()?);
            if self.rest.is_empty() {
                return Ok(all);
            }
            self.expect("&&")?;
        }
    }

    /// An entry of the first descriptor, and nothing else.
    fn variable(mut self) -> Result<String, String> {
        // Before expressions, a variable was the key alone.
        let is_key = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        if !self.rest.is_empty() && !self.rest.starts_with("descriptors") && self.rest.chars().all(is_key) {
            return Ok(self.rest.to_owned());
        }
        let key = self.key()?;
        if self.rest.is_empty() { Ok(key) } else { Err(self.fault()) }
    }

    fn comparison(&mut self) -> Result<Comparison, String> {
        let key = self.key()?;
        let wanted = if self.takes("==") {
            Wanted { any: Some(vec![self.text()?]), none: Vec::new() }
        } else if self.takes("!=") {
            Wanted { any: None, none: vec![self.text()?] }
        } else {
            self.expect("in")?;
            self.expect("[")?;
            let mut any = vec![self.text()?];
            while self.takes(",") {
                any.push(self.text()?);
            }
            self.expect("]")?;
            Wanted { any: Some(any), none: Vec::new() }
        };
        Ok(Comparison { key, wanted })
    }

    /// `descriptors[0]['key']` or `descriptors[0].key`.
    fn key(&mut self) -> Result<String, String> {
        self.expect("descriptors[0]")?;
        if self.takes(".") {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
            let (key, rest) = self.rest.split_at(end);
            self.rest = rest.trim_start();
            return if key.is_empty() { Err(self.fault()) } else { Ok(key.to_owned()) };
        }
        self.expect("[")?;
        let key = self.text()?;
        self.expect("]")?;
        Ok(key)
    }

    /// Text between quotes, without escapes.
    fn text(&mut self) -> Result<String, String> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'));
        let quote = quote.ok_or_else(|| self.fault())?;
        let (text, rest) = self.rest[1..].split_once(quote).ok_or_else(|| self.fault())?;
        if text.contains('\\') {
            return Err(self.fault());
        }
        self.rest = rest.trim_start();
        Ok(text.to_owned())
    }

    fn takes(&mut self, sign: &str) -> bool {
        let rest = self.rest.strip_prefix(sign);
        self.rest = rest.map_or(self.rest, str::trim_start);
        rest.is_some()
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.takes(sign) { Ok(()) } else { Err(self.fault()) }
    }
}

#[cfg(test)]
mod tests {
    use acequia_limits::Descriptor;

    use super::*;

    fn read(conditions: &str, variables: &str) -> Result<LimitSpec, Vec<String>> {
        let text = format!(
            "- namespace: shop\n  max_value: 5\n  seconds: 60\n  conditions: {conditions}\n  variables: {variables}\n"
        );
        read_limits("limits.yaml", &text).map(|mut limits| limits.remove(0))
    }

    fn is_about(spec: LimitSpec, entries: &[(&str, &str)]) -> bool {
        let entries: Vec<(&[u8], &[u8])> =
            entries.iter().map(|(k, v)| (k.as_bytes(), v.as_bytes())).collect();
        Limit::new(spec).expect("a limit").is_about(&Descriptor::new(&entries, None))
    }

    #[test]
    fn conditions_become_when_and_variables_become_by() {
        let conditions = r#"["descriptors[0]['req.method'] == 'POST' && descriptors[0].plan != \"free\"", "descriptors[0].plan != 'old'"]"#;
        let spec = read(conditions, "[\"descriptors[0]['user_id']\", region]").expect("a limit");
        assert_eq!((spec.domain.as_str(), spec.numbers().as_str()), ("shop", "5 a 60s"));
        let by: Vec<&str> = spec.by.iter().map(BySpec::key).collect();
        assert_eq!(by, ["user_id", "region"]);
        for (plan, method, is) in
            [("gold", "POST", true), ("gold", "GET", false), ("free", "POST", false), ("old", "POST", false)]
        {
            assert_eq!(
                is_about(spec.clone(), &[("plan", plan), ("req.method", method)]),
                is,
                "{plan} {method}"
            );
        }
        assert!(!is_about(spec, &[("req.method", "POST")]), "a key that is not there");
    }

    #[test]
    fn lists_and_odd_values_are_compared_as_text() {
        let spec = read(r#"["descriptors[0].k in ['a', '!b']"]"#, "[]").expect("a limit");
        for (value, is) in [("a", true), ("!b", true), ("b", false), ("c", false)] {
            assert_eq!(is_about(spec.clone(), &[("k", value)]), is, "{value}");
        }
        let none = read("", "").expect("a limit without conditions");
        assert!(none.when.is_empty() && none.by.is_empty() && none.name == "60s");
    }

    #[test]
    fn what_is_not_understood_is_refused_in_words() {
        for condition in [
            "descriptors[1].k == 'a'",
            "descriptors[0].k == 'a' || descriptors[0].k == 'b'",
            "descriptors[0].k.startsWith('a')",
            "int(descriptors[0].k) > 5",
            "descriptors[0].k == 'a",
            "descriptors[0].k == a",
            "descriptors[0]. == 'a'",
            "!(descriptors[0].k == 'a')",
            "true",
            "",
        ] {
            let faults = read(&format!("[{condition:?}]"), "[]").expect_err(condition);
            assert!(faults[0].contains("is not understood"), "{condition}: {faults:?}");
        }
        for (condition, word) in [
            ("descriptors[0].k == 'a' && descriptors[0].k == 'b'", "compared twice"),
            ("descriptors[0].k == 'a*'", "stands for any text"),
        ] {
            let faults = read(&format!("[{condition:?}]"), "[]").expect_err(condition);
            assert!(faults[0].contains(word), "{condition}: {faults:?}");
        }
        let faults =
            read_limits("limits.yaml", "- namespace: shop\n  max_value: 5\n").expect_err("no seconds");
        assert!(faults[0].starts_with("limits.yaml:2: ") && faults[0].contains("seconds"), "{faults:?}");
        let long = "- { namespace: a, max_value: 1, seconds: 99999999999 }\n";
        let faults = read_limits("limits.yaml", long).expect_err("no such window");
        assert!(faults[0].contains("limit 1: "), "{faults:?}");
        let twice = "- { namespace: a, max_value: 1, seconds: 9 }\n- { namespace: a, max_value: 2, seconds: 9 }\n\
                     - { namespace: a, max_value: 2, seconds: 0 }\n";
        let faults = read_limits("limits.yaml", twice).expect_err("twice");
        assert!(faults[0].contains("limit 2: 9s is there twice") && faults[1].contains("0 s"), "{faults:?}");
    }

    #[test]
    fn names_fit_whatever_the_file_says() {
        let text = "- { namespace: a, max_value: 1, seconds: 9, name: 'a b/c' }\n- { namespace: b, max_value: 1, seconds: 9 }\n";
        let names: Vec<String> =
            read_limits("l.yaml", text).expect("limits").into_iter().map(|limit| limit.name).collect();
        assert_eq!(names, ["a%20b%2Fc", "9s"]);
    }
}
