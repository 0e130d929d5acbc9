//! Written values: addresses and networks, YAML, JSON, and proxies' questions.
#![no_main]

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str,
};

use acequia_fuzz::{authz::Question, json::JsonDescriptor, quoted, seeds};
use acequia_limits::{
    Descriptor,
    networks::{Network, Networks},
    selector::{Condition, address_of},
};
use granit_parser::{Event, Parser, ScalarStyle};
use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(init: seeds::write(seeds), |bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => addresses(bytes),
        1 => yaml(bytes),
        2 => json(bytes),
        _ => authz(bytes),
    }
});

/// An address, then a network on each line. The set contains the address if and only if one of its networks
/// does, bit by bit.
fn addresses(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let mut lines = text.lines();
    let asked = lines.next().unwrap_or_default();
    let written: Vec<(&str, Network)> =
        lines.filter_map(|line| Some((line, Network::parse(line).ok()?))).collect();
    for (line, network) in &written {
        assert_eq!(Network::parse(&network.to_string()).as_ref(), Ok(network), "{line}");
    }
    let hop = bytes.len() as u8;
    let address = address_of(asked.as_bytes(), hop);
    let set: Networks = written.iter().map(|(_, network)| *network).collect();
    let condition = Condition::new("ip", written.iter().map(|(line, _)| *line)).of_addresses(hop);
    assert_eq!(condition.misfit(), None);
    let is_in = address.is_some_and(|address| written.iter().any(|(line, _)| has(line, address)));
    assert_eq!(address.is_some_and(|address| set.contains(address)), is_in, "{asked:?} in {written:?}");
    let entries = [(&b"ip"[..], asked.as_bytes())];
    let descriptor = Descriptor::new(&entries, None);
    assert_eq!(condition.holds(&descriptor), is_in || written.is_empty());
}

/// The definition of membership.
fn has(network: &str, address: IpAddr) -> bool {
    let (first, bits) = network.split_once('/').map_or((network, None), |(first, bits)| (first, Some(bits)));
    let first: IpAddr = first.parse().expect("it was read");
    let wide = |address: IpAddr| match address {
        IpAddr::V4(address) => Ipv4Addr::to_ipv6_mapped(&address),
        IpAddr::V6(address) => address,
    };
    let whole = if first.is_ipv4() { 32 } else { 128 };
    let bits: u32 = bits.map_or(whole, |bits| bits.parse().expect("it was read"));
    let bits = bits + 128 - whole;
    let mapped = Ipv6Addr::from_bits(0xFFFF << 32);
    // A network that is wider than all of IPv4 contains no IPv4 address.
    let is_same_kind = bits >= 96 || (wide(address).to_bits() ^ mapped.to_bits()) >> 32 != 0;
    let differ = wide(first).to_bits() ^ wide(address).to_bits();
    is_same_kind && (bits == 0 || differ >> (128 - bits) == 0)
}

/// Quoting changes only how scalars are written.
fn yaml(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let quoted = quoted(text);
    assert_eq!(text.lines().count(), quoted.lines().count());
    let read = |text: &str| -> Option<Vec<String>> {
        let events = Parser::new_from_str(text).map(|event| {
            Some(match event.ok()?.0 {
                Event::Scalar(value, ScalarStyle::Plain | ScalarStyle::SingleQuoted, anchor, tag) => {
                    format!("scalar {value:?} {anchor} {tag:?}")
                }
                other => format!("{other:?}"),
            })
        });
        events.collect()
    };
    let (Some(before), after) = (read(text), read(&quoted)) else { return };
    // The parser accepts a tab at the start of a line after a plain scalar, but not after a quoted one. Such
    // a config is refused, with its line.
    assert!(after.is_some() || text.contains('\t'), "{text:?} became {quoted:?}");
    assert!(after.is_none_or(|after| after == before), "{text:?} became {quoted:?}");
}

/// Texts are as JSON defines them; numbers and booleans stay as written.
fn json(bytes: &[u8]) {
    let Ok(JsonDescriptor(pairs)) = serde_json::from_slice(bytes) else { return };
    let value: Value = match serde_json::from_slice(bytes) {
        Ok(value) => value,
        // As text, such a number is a value like any other.
        Err(fault) => return assert!(fault.to_string().contains("number out of range"), "{fault}"),
    };
    let text = str::from_utf8(bytes).expect("JSON is text");
    let agrees = |read: &str, value: &Value| match value {
        Value::String(text) => read == text,
        Value::Bool(truth) => read == truth.to_string(),
        // `serde_json` keeps only the digits of a 64-bit number. Our reader keeps all digits.
        Value::Number(number) => {
            text.contains(read) && serde_json::from_str(read).ok().as_ref() == Some(number)
        }
        _ => false,
    };
    match value {
        Value::Array(list) => {
            assert_eq!(list.len(), pairs.len());
            for (pair, (key, read)) in list.iter().zip(&pairs) {
                assert!(pair[0] == *key && agrees(read, &pair[1]), "{pair} is {key} {read}");
            }
        }
        Value::Object(map) => {
            for (key, value) in &map {
                // If a key comes twice, this reader keeps the last value.
                let read = pairs.iter().rev().find(|(own, _)| own == key).expect("the key");
                assert!(agrees(&read.1, value), "{value} is {read:?}");
            }
        }
        other => panic!("{other} is a descriptor"),
    }
}

/// A query, then a header on each line. Any input gets an answer, and no parameter counts twice.
fn authz(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let query = lines.next().unwrap_or_default();
    let Ok(query) = serde_urlencoded::from_bytes::<Vec<(String, String)>>(query) else { return };
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..colon]);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(&line[colon + 1..])) {
            headers.append(name, value);
        }
    }
    let Ok(question) = Question::read(&query, &headers) else { return };
    assert!((400..600).contains(&question.deny_status.as_u16()) && question.cost > 0);
    let mut keys: Vec<&str> = question.entries.iter().map(|(key, _)| *key).collect();
    keys.sort_unstable();
    let before = keys.len();
    keys.dedup();
    assert_eq!(keys.len(), before, "{query:?}");
    assert!(before <= query.len());
}

fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "\0203.0.113.7:4711\n203.0.113.0/24\n10.0.0.0/8\n::/0",
        "\010.0.0.1, [2001:db8::1]:80\n2001:db8::/32\n::ffff:10.0.0.0/104\n0.0.0.0/0",
        "\u{1}a: NO\nb: [1.10, 01234, x]\nc: { d: 0x1F, 'e': \"5\" }\n",
        "\u{1}- &x 5\n- *x\n- !!int 5\n- |\n  12\n- +1_000\n- ~\n",
        "\u{2}{\"a\": 123456789012345678901234567890, \"b\": \"x\\u0041\", \"c\": true}",
        "\u{2}[[\"a\", 1.10], [\"a\", -0], [\"b\", 1e2]]",
        "\u{3}domain=shop&header.key=x-key&cost=3&deny_status=403&q=%01\nx-key: a\nx-key: b",
        "\u{3}domain=shop&domain=x&header.a=b&a=c",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
