//! Calls of functions in a region's Redis. **A call is sent at most once, gets only its own answer, and names
//! the process that it is meant for and that process's life as a primary.**
//!
//! Cells are divided into [`Group`]s. Each group lies on one shard; this module knows which, and where its
//! primary is. A call goes over a connection whose server was asked for its identity, and carries that
//! identity as its first argument. The function compares the identity with the history that the server
//! replicates, and with the stored one. So a state that another process lost, or that a copy never had, is
//! not taken for the present state. A library's cluster client is not used, because it would hide which
//! server answered.
//!
//! The set of shards may change, and callers may disagree about it. A group that is looked for on another
//! shard begins a generation there, as if a server was replaced and lives on.
//!
//! A call ends within its deadline and is never repeated, unless Redis said that it did not execute the call.
//! A server that does not answer is noticed and given up in less than a second, and its successor is looked
//! for. Calls to other servers go on meanwhile. This module does not know what the functions do.
//!
//! `settings` says where the servers are and how patiently they are asked. `keeper` finds out which server
//! has which groups: `topology` asks the servers, `ring` computes places. `tend` keeps the connections of a
//! `shard`, which are `link`s over `wire`s. `breaker` decides when a shard gets no calls, and `clock` whether
//! its time agrees with ours. `library` is loaded into servers, `answer` is what comes back. `round_trips`
//! and `executed` measure durations.

mod answer;
mod breaker;
mod clock;
mod executed;
mod group;
mod keeper;
mod library;
mod link;
mod ring;
mod round_trips;
mod server;
mod settings;
mod shard;
mod tend;
mod topology;
mod wire;

use std::{sync::Arc, time::Duration};

use acequia_node::pool::ServerClock;
use arc_swap::ArcSwap;
use tokio::{runtime, sync::Notify, task::AbortHandle};

pub use self::{
    answer::{Arg, Missed, Value},
    breaker::BreakerState,
    clock::WallRead,
    group::Group,
    library::Function,
    round_trips::{ROUND_TRIP_BOUNDS_US, RoundTrips},
    settings::{
        Address, CALL_DEADLINE, CONNECTIONS_MAX, ClientCertificate, Credentials, Password, RedisServers,
        SHARDS_MAX, Settings, SettingsError, Timings, Tls,
    },
    shard::{ShardState, ShardView},
};
use self::{
    keeper::{Map, keep},
    shard::RedisCall,
};

/// A region's Redis. Cheap to clone. Any thread whose runtime has timers may call it. Dropping the last clone
/// closes the connections.
#[derive(Clone, Debug)]
pub struct Redis(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    prefix: String,
    has_clocks: bool,
    map: Arc<ArcSwap<Map>>,
    keeper: AbortHandle,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Redis {
    /// Begins to connect, on the current runtime. [`Self::shards`] and calls show whether the servers are
    /// there.
    ///
    /// # Errors
    /// The settings are out of their ranges, or there is no runtime here.
    pub fn open(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        let runtime = runtime::Handle::try_current().map_err(|_| SettingsError::Runtime)?;
        let (prefix, has_clocks) = (settings.prefix.clone(), settings.clock_error.is_some());
        let map = Arc::new(ArcSwap::from_pointee(Map::default()));
        let refresh = Arc::new(Notify::new());
        let keeper = runtime.spawn(keep(settings, Arc::clone(&map), refresh)).abort_handle();
        Ok(Self(Arc::new(Handle { prefix, has_clocks, map, keeper })))
    }

    /// Calls a function once, with the keys `<prefix>:{<group>}:<suffix>`. Before `args` the function gets
    /// the server's identity, as of the connection, and the operation's number. The result is the part of the
    /// answer after that number.
    ///
    /// # Errors
    /// Why there is no answer, and whether the call may have been executed. It comes after the deadline at
    /// the latest.
    pub async fn call(
        &self,
        group: Group,
        function: Function,
        suffixes: &[&str],
        args: &[Arg<'_>],
        deadline: Duration,
    ) -> Result<Vec<Value>, Missed> {
        let shard = self.0.map.load().shard(group).cloned();
        let shard =
            shard.ok_or_else(|| Missed::not_sent("nobody has told yet which shard serves its group"))?;
        let keys: Vec<String> = suffixes.iter().map(|suffix| group.key(&self.0.prefix, suffix)).collect();
        shard.call(&RedisCall { function, keys: &keys, args, deadline }).await
    }

    /// Whether clocks are compared: [`Settings::clock_error`].
    #[must_use]
    pub fn has_clocks(&self) -> bool {
        self.0.has_clocks
    }

    /// How the servers' clocks compare with our wall, one for each shard that has told the time. Empty if
    /// [`Settings::clock_error`] is not set.
    #[must_use]
    pub fn clocks(&self, read: &WallRead) -> Vec<ServerClock> {
        self.0.map.load().shards.iter().filter_map(|shard| shard.clock(read)).collect()
    }

    /// From now until the next comparison, calls go only to servers whose clocks agree with this wall, within
    /// twice [`Settings::clock_error`]. Call this every ten milliseconds or so; before the first time no
    /// server is called.
    pub fn compare_clocks(&self, read: &WallRead) {
        for shard in &self.0.map.load().shards {
            shard.compare_clock(read);
        }
    }

    /// The known shards, in a fixed order.
    #[must_use]
    pub fn shards(&self) -> Vec<ShardView> {
        self.0.map.load().shards.iter().map(|shard| shard.view()).collect()
    }

    /// The shard of a group, if it is known.
    #[must_use]
    pub fn shard(&self, group: Group) -> Option<ShardView> {
        self.0.map.load().shard(group).map(|shard| shard.view())
    }
}
