//! Replicas that count in one Redis, as those of envoyproxy/ratelimit do.

use std::{thread, time::Instant};

use acequia_tests::eventually;
use serde_json::{Value, json};

use super::place::{Replacement, asked};
use crate::store::servers::Server;

fn tenant(name: &str) -> Value {
    json!([{ "key": "tenant", "value": name }])
}

pub(crate) fn replica(server: &Server, variables: &[(&str, &str)]) -> Replacement {
    let url = format!("127.0.0.1:{}", server.port());
    let mut all = vec![("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", url.as_str())];
    all.extend(variables);
    Replacement::start(&all)
}

/// Hits of a tenant; says whether they pass, and what is left.
fn hit(replica: &Replacement, name: &str, hits: u64) -> (bool, u64) {
    let (status, answer) = replica.json(&asked(&tenant(name), hits));
    let left = answer["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0);
    (status == 200, left)
}

/// Waits until a replica counts, and not only answers.
pub(crate) fn counts(replica: &Replacement) {
    eventually("it counts", || hit(replica, "warm", 0).0);
}

#[test]
fn replicas_agree_exactly() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let replicas = [replica(&server, &[]), replica(&server, &[])];
    replicas.iter().for_each(counts);
    let [one, other] = &replicas;
    assert_eq!([hit(one, "a", 2), hit(other, "a", 2), hit(one, "a", 1)], [(true, 3), (true, 1), (true, 0)]);
    assert!(!hit(other, "a", 1).0 && !hit(one, "a", 1).0);
    assert_eq!(hit(other, "b", 1), (true, 4), "another tenant");

    // Many callers at once: exactly the limit passes, on both together.
    let passed: usize = thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|caller: usize| {
                let replica = &replicas[caller % 2];
                scope.spawn(move || (0..5).filter(|_| hit(replica, "c", 1).0).count())
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().expect("a count")).sum()
    });
    assert_eq!(passed, 5);

    // Another deployment in the same Redis.
    let apart = replica(&server, &[("CACHE_KEY_PREFIX", "apart")]);
    counts(&apart);
    assert_eq!(hit(&apart, "a", 1), (true, 4));
}

/// A replica with a new config takes over what the others have counted, whatever entry counts it.
#[test]
fn counts_go_on_when_a_value_gets_an_entry_of_its_own() {
    let server = Server::start(&[]);
    let replicas = [replica(&server, &[]), replica(&server, &[])];
    replicas.iter().for_each(counts);
    assert_eq!(hit(&replicas[0], "a", 4), (true, 1));
    let own = "  - { key: tenant, value: a, rate_limit: { unit: year, requests_per_unit: 6 } }\n";
    let text = std::fs::read_to_string(replicas[1].config()).expect("a config");
    std::fs::write(replicas[1].config(), text + own).expect("written");
    eventually("the new entry counts", || replicas[1].get(2, "/rlconfig").contains("tenant_a"));
    assert_eq!([hit(&replicas[1], "a", 1), hit(&replicas[0], "a", 1)], [(true, 1), (false, 0)]);
}

/// What is denied without a call is counted with the next one, so that giving it back gives nothing away.
#[test]
fn hits_that_were_denied_without_a_call_are_counted_before_they_come_back() {
    let server = Server::start(&[]);
    let replica = replica(&server, &[]);
    counts(&replica);
    for _ in 0..4 {
        assert!(!hit(&replica, "a", 6).0);
    }
    let back = json!({ "domain": "shop", "descriptors": [
        { "entries": tenant("a"), "hitsAddend": "18", "isNegativeHits": true }
    ] });
    // What comes back asks for nothing, but is told that six of five are counted.
    assert_eq!(replica.json(&back.to_string()).0, 429);
    assert!(!hit(&replica, "a", 1).0);
}

#[test]
fn hits_are_given_back_and_descriptors_of_one_request_are_counted_together() {
    let server = Server::start(&[]);
    let replica = replica(&server, &[]);
    counts(&replica);
    assert_eq!(hit(&replica, "a", 9), (false, 0), "recorded though it does not fit");
    let back = json!({ "domain": "shop", "descriptors": [
        { "entries": tenant("a"), "hitsAddend": "7", "isNegativeHits": true }
    ] });
    assert_eq!(replica.json(&back.to_string()).0, 200);
    assert_eq!(hit(&replica, "a", 1), (true, 2));
    let path = json!([{ "key": "path", "value": "/x" }, { "key": "user", "value": "u1" }]);
    let both = json!({ "domain": "shop", "descriptors": [{ "entries": tenant("b") }, { "entries": path }] });
    let (_, answer) = replica.json(&both.to_string());
    assert_eq!(answer["statuses"][0]["limitRemaining"], 4, "{answer}");
    assert_eq!(answer["statuses"][1]["currentLimit"]["requestsPerUnit"], 1, "{answer}");
    let check = r#"{"domain":"shop","descriptors":[{"tenant":"d"}],"id":"once"}"#;
    let (status, said) = replica.post("/v1/check", check);
    assert!(
        status == 400 && said["error"].as_str().is_some_and(|text| text.contains("no charge is remembered")),
        "{said}"
    );
    let (status, said) = replica.post("/v1/check", &check.replace(r#","id":"once""#, ""));
    assert!(status == 200 && said["remaining"] == 4, "{said}");
}

/// A process that is stopped keeps its connections open, and answers nothing.
#[test]
fn without_its_redis_a_replica_denies_or_passes_at_once_as_it_was_told() {
    let server = Server::start(&[]);
    let strict = replica(&server, &[]);
    let lenient = replica(&server, &[("ACEQUIA_ON_REDIS_LOSS", "allow")]);
    counts(&strict);
    counts(&lenient);
    server.hang();
    let begun = Instant::now();
    let (status, answer) = strict.json(&asked(&tenant("a"), 1));
    assert_eq!((status, &answer["overallCode"]), (429, &json!("OVER_LIMIT")), "{answer}");
    assert!(hit(&lenient, "a", 1).0);
    let many = (0..200).filter(|_| hit(&strict, "a", 1).0).count();
    assert_eq!(many, 0);
    eprintln!("202 answers without a Redis took {:?}", begun.elapsed());
    server.go_on();
    eventually("it counts again", || hit(&strict, "z", 0).0);
}
