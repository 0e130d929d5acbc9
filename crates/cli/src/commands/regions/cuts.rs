//! The price of a longer cut, for every peer that is not reached.

use acequia_api::acequia::v1::{NodeStatus, Peer, limit_status::Kind};

use crate::commands::people::duration;

/// A paragraph for every peer that is not reached; empty if all are reached.
pub(super) fn cuts(status: &NodeStatus) -> Vec<String> {
    status.peers.iter().filter(|peer| !peer.reached).map(|peer| cut(peer, status)).collect()
}

fn cut(peer: &Peer, status: &NodeStatus) -> String {
    let region = &peer.region;
    let heard = match peer.heard_ms_ago {
        Some(ms) => format!("{region} is not reached, and was last heard {} ago", duration(ms)),
        None => format!("{region} was never heard since this process started"),
    };
    let mut sentences = vec![
        format!("{heard}: nothing is lent to it, and nothing new borrowed of it."),
        borrowed(peer, status),
        lent(peer),
    ];
    let has_windows = status.limits.iter().any(|limit| limit.kind() == Kind::Window);
    if has_windows {
        sentences.push("Rights of open windows stay where they are.".to_owned());
    }
    if peer.is_member {
        sentences.push(format!(
            "Until {region} is heard again or evicted, the others cannot use its standing share, and lowered budgets and \
             changes of regions wait for it."
        ));
    }
    sentences.join(" ")
}

/// What this region holds of the peer.
fn borrowed(peer: &Peer, status: &NodeStatus) -> String {
    let Peer { region, borrowed, .. } = peer;
    // The node reports when the first loan ends, but not whose loan it is.
    let first = status.limits.iter().filter_map(|limit| limit.loans_end_ms).min();
    let when =
        first.map_or(String::new(), |ms| format!(" (of all loans, the first ends in {})", duration(ms)));
    match borrowed {
        0 => format!(
            "This region holds no loan of {region}: it spends its own share and what it has of others."
        ),
        1 => format!(
            "The loan that this region holds of {region} ends by itself unless {region} is heard again{when}."
        ),
        many => format!(
            "The {many} loans that this region holds of {region} end by themselves unless {region} is heard again{when}."
        ),
    }
}

/// What the peer holds of this region.
fn lent(peer: &Peer) -> String {
    let Peer { region, lent, .. } = peer;
    match lent {
        0 => format!("{region} holds no loan of this region."),
        1 => format!("The loan that {region} holds comes back by itself, a little after it has ended there."),
        many => {
            format!(
                "The {many} loans that {region} holds come back by themselves, a little after they have ended there."
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::show::examples::{cut as status, us},
        *,
    };

    #[test]
    fn every_unreached_peer_has_a_paragraph() {
        assert_eq!(
            cuts(&status()),
            [
                "us is not reached, and was last heard 12 s ago: nothing is lent to it, and nothing new borrowed of it. The \
              2 loans that this region holds of us end by themselves unless us is heard again (of all loans, the first ends in \
              2.1 s). The 3 \
              loans that us holds come back by themselves, a little after they have ended there. Rights of open windows \
              stay where they are. Until us is heard again or evicted, the others cannot use its standing share, and \
              lowered budgets and changes of regions wait for it."
            ]
        );
    }

    #[test]
    fn a_paragraph_on_a_cut_says_only_what_is_known() {
        let never = Peer { heard_ms_ago: None, is_member: false, lent: 0, borrowed: 0, ..us() };
        let status = NodeStatus { peers: vec![never], limits: Vec::new(), ..status() };
        assert_eq!(
            cuts(&status),
            [
                "us was never heard since this process started: nothing is lent to it, and nothing new borrowed of it. This \
              region holds no loan of us: it spends its own share and what it has of others. us holds no loan of this \
              region."
            ]
        );
        let one = Peer { lent: 1, borrowed: 1, ..us() };
        let status = NodeStatus { peers: vec![one], limits: Vec::new(), ..status };
        let text = cuts(&status).concat();
        assert!(
            text.contains("The loan that this region holds of us ends by itself unless us is heard again."),
            "{text}"
        );
        assert!(
            text.contains("The loan that us holds comes back by itself, a little after it has ended there."),
            "{text}"
        );
    }

    #[test]
    fn a_reached_peer_has_no_paragraph() {
        let mut status = status();
        status.peers[1].reached = true;
        assert!(cuts(&status).is_empty());
    }
}
