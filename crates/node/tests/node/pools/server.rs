//! The server of pools.

use std::collections::BTreeMap;

use acequia_node::pool::{PoolCall, PoolName, PoolReply, PoolRequest};
use acequia_rights::pool::{
    Bucket, PoolGroup, Sliding, Window,
    group::{GroupStatus, ServerIdentity},
};

/// The server of the pools. Its behaviour is that of the pool rules.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    run: u64,
    groups: BTreeMap<u16, PoolGroup>,
    windows: BTreeMap<PoolName, Window>,
    buckets: BTreeMap<PoolName, Bucket>,
    slidings: BTreeMap<PoolName, Sliding>,
}

impl Server {
    pub(super) fn new() -> Self {
        Self {
            run: 1,
            groups: BTreeMap::new(),
            windows: BTreeMap::new(),
            buckets: BTreeMap::new(),
            slidings: BTreeMap::new(),
        }
    }

    /// Replaces the process by a new one, which starts from the given state or from nothing.
    pub(crate) fn restart(&mut self, from: Option<&Self>) {
        let run = self.run + 1;
        *self = from.cloned().unwrap_or_else(Self::new);
        self.run = run;
    }

    fn server(&self, allocation: u64) -> ServerIdentity {
        ServerIdentity { run: self.run.to_string(), config_fingerprint: 0, allocation }
    }

    pub(super) fn serve(&mut self, call: &PoolCall) -> PoolReply {
        let server = self.server(call.allocation);
        let group = self.groups.entry(call.group).or_default();
        match &call.question {
            PoolRequest::Begin(begin) => return PoolReply::Known(group.begin(&server, begin)),
            PoolRequest::Assert(assertion, None) => {
                return PoolReply::Known(group.assert(&server, assertion));
            }
            PoolRequest::Assert(assertion, Some(absent)) => {
                return PoolReply::Known(group.assert_without(&server, assertion, absent));
            }
            _ => {}
        }
        let Some(context) = group.context(&server, call.generation, call.wall_us) else {
            let known: GroupStatus = group.known(&server);
            return PoolReply::Unknown(known);
        };
        let said = match &call.question {
            PoolRequest::Take(name, take) => {
                self.windows.entry(*name).or_default().take(take, &context).map(PoolReply::Took)
            }
            PoolRequest::Exchange(name, exchange, params) => self
                .buckets
                .entry(*name)
                .or_default()
                .exchange(exchange, params, &context)
                .map(PoolReply::Exchanged),
            PoolRequest::Slide(name, slide) => {
                self.slidings.entry(*name).or_default().exchange(slide, &context).map(PoolReply::Slid)
            }
            PoolRequest::Sweep(_) => Ok(PoolReply::Swept(0)),
            PoolRequest::Begin(_) | PoolRequest::Assert(..) => unreachable!("answered"),
        };
        said.unwrap_or_else(PoolReply::Refused)
    }
}
