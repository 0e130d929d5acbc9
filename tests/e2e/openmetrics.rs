//! A strict reader of OpenMetrics text 1.0. A scraper may refuse whatever this reader refuses.

use std::collections::{BTreeMap, BTreeSet};

/// The contents of a scrape.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) samples: Vec<Sample>,
    /// Every family by its name in queries, with the labels of each sample except `le`.
    pub(crate) families: BTreeMap<String, BTreeSet<BTreeSet<String>>>,
}

/// A line with a sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: f64,
}

/// A metric family while it is being read.
#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: String,
    samples: Vec<Sample>,
}

impl Metrics {
    /// The sum of the samples of a name that have all these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let named = self.samples.iter().filter(|sample| sample.name == name);
        named.filter(|sample| labels.iter().all(|l| sample.label(l.0) == Some(l.1))).map(|s| s.value).sum()
    }
}

impl Sample {
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Reads a scrape.
pub(crate) fn parse(text: &str) -> Result<Metrics, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("the last line is not # EOF")?;
    let mut names = BTreeSet::new();
    let mut family = Family::default();
    let mut metrics = Metrics::default();
    for line in body.lines() {
        let fault = |what: &str| format!("{what}: {line:?}");
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (word, name) = (words.next().unwrap_or(""), words.next().ok_or_else(|| fault("no name"))?);
            let rest = words.next().ok_or_else(|| fault("nothing after the name"))?;
            if family.name != name {
                family.end(&mut metrics)?;
                if !is_name(name) || !names.insert(name.to_owned()) {
                    return Err(fault("no name, or one that was there before"));
                }
                family = Family { name: name.to_owned(), ..Family::default() };
            }
            if !family.samples.is_empty() {
                return Err(fault("metadata after the samples"));
            }
            match word {
                "TYPE"
                    if ["counter", "gauge", "histogram", "info", "unknown"].contains(&rest)
                        && family.kind.is_empty() =>
                {
                    rest.clone_into(&mut family.kind);
                }
                "UNIT" if name.ends_with(&format!("_{rest}")) => {}
                "HELP" if !rest.is_empty() => {}
                _ => return Err(fault("no metadata")),
            }
        } else {
            let sample = sample(line).ok_or_else(|| fault("no sample"))?;
            if !family.suffixes().iter().any(|suffix| sample.name == format!("{}{suffix}", family.name)) {
                return Err(fault("a sample outside its family"));
            }
            if family.samples.iter().any(|s| s.name == sample.name && s.labels == sample.labels) {
                return Err(fault("a sample that was there before"));
            }
            if family.kind != "gauge" && (sample.value < 0.0 || sample.value.is_nan()) {
                return Err(fault("a count below 0"));
            }
            family.samples.push(sample);
        }
    }
    family.end(&mut metrics)?;
    Ok(metrics)
}

impl Family {
    fn suffixes(&self) -> &'static [&'static str] {
        match self.kind.as_str() {
            "counter" => &["_total"],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count"],
            "gauge" | "unknown" => &[""],
            _ => &[],
        }
    }

    /// Adds the family's samples to `metrics`, if they are consistent.
    fn end(&mut self, metrics: &mut Metrics) -> Result<(), String> {
        match self.kind.as_str() {
            "histogram" => self.check_buckets().map_err(|what| format!("{}: {what}", self.name))?,
            "info" if self.samples.iter().any(|sample| sample.value != 1.0) => {
                return Err(format!("{}: an info that is not 1", self.name));
            }
            _ => {}
        }
        if !self.name.is_empty() {
            let suffix = if self.kind == "histogram" { "" } else { self.suffixes().first().unwrap_or(&"") };
            let labels = |sample: &Sample| {
                sample.labels.iter().map(|(name, _)| name.clone()).filter(|name| name != "le").collect()
            };
            let name = format!("{}{suffix}", self.name);
            metrics.families.insert(name, self.samples.iter().map(labels).collect());
        }
        metrics.samples.append(&mut self.samples);
        Ok(())
    }

    /// Checks each histogram of the family: there is one for each set of labels.
    fn check_buckets(&self) -> Result<(), String> {
        let labels =
            |sample: &Sample| sample.labels.iter().filter(|(name, _)| name != "le").cloned().collect();
        let all: BTreeSet<Vec<(String, String)>> = self.samples.iter().map(labels).collect();
        all.iter().try_for_each(|one| self.check_buckets_of(|sample| labels(sample) == *one))
    }

    fn check_buckets_of(&self, is_of: impl Fn(&Sample) -> bool) -> Result<(), String> {
        let (mut bound, mut count) = (f64::NEG_INFINITY, 0.0);
        let of = |suffix| move |sample: &&Sample| sample.name.ends_with(suffix);
        for bucket in self.samples.iter().filter(|sample| is_of(sample)).filter(of("_bucket")) {
            let le = bucket.label("le").ok_or("a bucket without a bound")?;
            let next = if le == "+Inf" { f64::INFINITY } else { number(le).ok_or("no bound")? };
            if next <= bound || bucket.value < count {
                return Err(format!("the bucket {le} is out of order"));
            }
            (bound, count) = (next, bucket.value);
        }
        let total = self.samples.iter().filter(|sample| is_of(sample)).find(of("_count"));
        if bound != f64::INFINITY || total.map(|total| total.value) != Some(count) {
            return Err("the last bucket is not +Inf, or does not hold everything".to_owned());
        }
        Ok(())
    }
}

/// `name{label="value",…} number`
fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels: Vec<(String, String)> = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            if !is_name(label) || labels.iter().any(|(found, _)| found == label) {
                return None;
            }
            labels.push((label.to_owned(), value));
            rest = after;
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}')?;
    }
    let value = number(rest.strip_prefix(' ')?)?;
    is_name(name).then(|| Sample { name: name.to_owned(), labels, value })
}

/// A number in digits. Other readers refuse forms such as `inf`, which Rust reads.
fn number(text: &str) -> Option<f64> {
    let fits = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
    text.chars().all(fits).then(|| text.parse().ok()).flatten()
}

/// Reads to the closing quote. Returns the text, and the rest after the quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('"' | '\\') => c,
                _ => return None,
            }),
            (_, c) => value.push(c),
        }
    }
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(fits)
}

#[test]
fn the_reader_is_strict() {
    let sound = "# HELP a_seconds Help.\n# TYPE a_seconds histogram\n# UNIT a_seconds seconds\n\
                 a_seconds_sum 0.5\na_seconds_count 2\na_seconds_bucket{le=\"1.0\"} 1\n\
                 a_seconds_bucket{le=\"+Inf\"} 2\n# HELP b Help.\n# TYPE b counter\n\
                 b_total{x=\"1\\\"\",y=\"2\"} 3\n\
                 # HELP c Help.\n# TYPE c histogram\nc_sum{x=\"1\"} 1\nc_count{x=\"1\"} 4\n\
                 c_bucket{x=\"1\",le=\"+Inf\"} 4\nc_sum{x=\"2\"} 1\nc_count{x=\"2\"} 2\n\
                 c_bucket{x=\"2\",le=\"1.0\"} 1\nc_bucket{x=\"2\",le=\"+Inf\"} 2\n\
                 # HELP d Help.\n# TYPE d info\nd_info{version=\"9\"} 1\n# HELP e Help.\n# TYPE e gauge\n# EOF\n";
    let metrics = parse(sound).expect("sound");
    assert_eq!(metrics.sum("b_total", &[("x", "1\"")]), 3.0);
    let families: Vec<_> = metrics.families.keys().map(String::as_str).collect();
    assert_eq!(families, ["a_seconds", "b_total", "c", "d_info", "e"]);
    let labels = |family: &str| -> Vec<Vec<&str>> {
        metrics.families[family].iter().map(|labels| labels.iter().map(String::as_str).collect()).collect()
    };
    assert_eq!((labels("a_seconds"), labels("c")), (vec![vec![]], vec![vec!["x"]]));
    assert_eq!((labels("b_total"), labels("e")), (vec![vec!["x", "y"]], vec![]));
    for (from, to) in [
        ("# EOF\n", ""),
        ("# EOF\n", "# EOF\n\n"),
        ("b_total{", "b{"),
        ("y=\"2\"", "x=\"2\""),
        ("} 3\n", "} three\n"),
        ("} 3\n", "} -3\n"),
        ("} 3\n", "} 3\nb_total{x=\"1\\\"\",y=\"2\"} 4\n"),
        ("} 3\n", "} 3\na_seconds_sum 1\n"),
        ("{le=\"+Inf\"} 2", "{le=\"+Inf\"} 0"),
        ("{le=\"+Inf\"}", "{le=\"inf\"}"),
        ("\na_seconds_bucket{le=\"+Inf\"} 2", ""),
        ("c_count{x=\"2\"} 2", "c_count{x=\"2\"} 4"),
        ("c_bucket{x=\"2\",le=\"1.0\"} 1", "c_bucket{x=\"2\",le=\"1.0\"} 3"),
        ("c_bucket{x=\"1\",le=\"+Inf\"} 4\n", ""),
        ("# TYPE b counter\n", ""),
        ("# UNIT a_seconds seconds", "# UNIT a_seconds bytes"),
        ("1\\\"", "1\""),
        ("# HELP b Help.\n", "\n"),
        ("d_info{", "d{"),
        ("d_info{version=\"9\"} 1", "d_info{version=\"9\"} 2"),
    ] {
        let broken = sound.replace(from, to);
        assert_ne!(broken, sound);
        parse(&broken).expect_err(&format!("{from:?} replaced by {to:?}"));
    }
}
