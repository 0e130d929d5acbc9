//! The notation of limits: rates, durations, patterns, conditions and addresses.
#![no_main]

use std::str;

use acequia_fuzz::seeds;
use acequia_limits::{
    Descriptor, PERIOD_NS_MAX, Rate, UNITS_MAX,
    notation::{format_duration_ns, parse_duration_ns, parse_units},
    pattern::Pattern,
    selector::{By, Condition, Prefix},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: seeds::write(seeds), |bytes: &[u8]| {
    // A text, and a value that may match it.
    let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
    let (text, value) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let Ok(text) = str::from_utf8(text) else { return };

    if let Ok(rate) = Rate::parse(text) {
        let (units, period_ns) = rate.lowest_terms();
        assert!((1..=UNITS_MAX).contains(&units) && (1..=PERIOD_NS_MAX).contains(&period_ns));
    }
    if let Ok(ns) = parse_duration_ns(text) {
        assert!((1..=PERIOD_NS_MAX).contains(&ns));
        let short = parse_duration_ns(&format_duration_ns(ns)).expect("what is written reads back");
        assert!(short <= ns && ns - short <= ns / 20, "{ns} is written as {short}");
    }

    if let Ok(units) = parse_units(text) {
        let digits = text.trim_end_matches(['k', 'M']);
        assert!(digits.bytes().all(|byte| byte.is_ascii_digit()) && text.len() <= digits.len() + 1, "{text:?}");
        assert_eq!(parse_units(&units.to_string()), Ok(units));
    }

    let pattern = Pattern::new(text);
    assert_eq!(pattern.to_string(), text);
    let fits = pattern.matches(value);
    assert_eq!(fits, naive(text.as_bytes(), value), "{text:?} {value:?}");
    assert!(!fits || value.starts_with(pattern.prefix().as_bytes()));
    let _ = format!("{:?} {}", Condition::new(text, [text, "!a*", "\\!"]).accepts(value), fits);

    let bits = |byte: Option<&u8>, most: u8| byte.map_or(0, |b| b % (most + 1));
    let hop = bytes.len() as u8;
    let prefix = Prefix { v4: bits(bytes.first(), 32), v6: bits(bytes.last(), 128), hop };
    let by = By { key: text.to_owned(), prefix: Some(prefix), place: None };
    let entries = [(text.as_bytes(), value)];
    let descriptor = Descriptor::new(&entries, None);
    let canonical = by.canonical(&descriptor).expect("the key is there");
    assert!(matches!(canonical.bytes().len(), 0 | 4 | 16));
    let _ = Condition::new(text, [text, "!a*"]).of_addresses(hop).holds_for_all(&descriptor);
});

/// The definition, position by position: `fits[j]` is whether the pattern so far matches the first `j` bytes.
fn naive(pattern: &[u8], value: &[u8]) -> bool {
    let mut fits = vec![false; value.len() + 1];
    fits[0] = true;
    for byte in pattern {
        if *byte == b'*' {
            let first = fits.iter().position(|fit| *fit).unwrap_or(fits.len());
            fits[first..].fill(true);
        } else {
            for end in (1..fits.len()).rev() {
                fits[end] = fits[end - 1] && value[end - 1] == *byte;
            }
            fits[0] = false;
        }
    }
    fits[value.len()]
}

fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "60/s\n",
        "5/10s\n10.1.2.3",
        "50k/d\n2001:db8::1",
        "2M\n",
        "1min30sec\n",
        "1h30m\nx",
        "250ms\n",
        "400d\n",
    ];
    let patterns = ["/report/*\n/report/a/b", "a*b*c\na-b-b-c", "!x*\n!x", "*.png\na.png"];
    texts.iter().chain(&patterns).map(|text| text.as_bytes().to_vec()).collect()
}
