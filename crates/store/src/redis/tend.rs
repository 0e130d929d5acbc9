//! Keeps one connection of a shard: connects, pings, looks at the server, and connects again.

use std::{sync::Arc, time::Duration};

use acequia_rights::splitmix::Random;
use tokio::time::{Instant, sleep};

use super::{
    answer::Fault,
    link::{Link, Pong},
    settings::Timings,
    shard::{ConnectionSlot, Shard},
    wire::{Access, Wire},
};
use crate::settings::SETTINGS;

/// Tends the connection until the task is aborted.
pub(super) async fn tend(shard: Arc<Shard>, index: usize, access: Access, timings: Timings, seed: u64) {
    let mut random = Random::from_state(seed);
    let mut pause = Pause::new(timings.reconnect_min, timings.reconnect_max);
    loop {
        let begun = Instant::now();
        match opened(&shard, &access).await {
            Err(why) => {
                // A server that hangs accepts connections and says nothing.
                let still_hangs = shard.is_hung(index) && begun.elapsed() >= access.timeout;
                if !still_hangs {
                    shard.put(index, ConnectionSlot::Lost(why));
                }
            }
            Ok((link, mut wire)) => {
                shard.put(index, ConnectionSlot::Open(Arc::clone(&link)));
                let end = watched(&shard, &link, &mut wire, &timings, &mut random).await;
                shard.put(index, end);
                // A connection that is closed at once is made again as rarely as one that fails.
                if begun.elapsed() > timings.reconnect_max {
                    pause.reset();
                }
            }
        }
        sleep(pause.next(&mut random)).await;
    }
}

/// Makes a connection. The server is judged before any call can use it.
async fn opened(shard: &Shard, access: &Access) -> Result<(Arc<Link>, Wire), String> {
    let (link, wire) = Link::open(&shard.address, access).await?;
    match link.look().await {
        // The server's clock is read before the first call.
        Ok(unfit) => {
            if unfit.is_none() {
                link.ping(access.timeout).await;
            }
            shard.judge(unfit);
        }
        Err(fault) => return Err(format!("it does not say what it is: {fault}")),
    }
    Ok((link, wire))
}

/// Watches a connection until it is useless. Returns the new state of its slot.
async fn watched(
    shard: &Shard,
    link: &Link,
    wire: &mut Wire,
    timings: &Timings,
    random: &mut Random,
) -> ConnectionSlot {
    let mut silent = 0;
    // The random part keeps connections and nodes from pinging at one moment.
    let mut rest = timings.ping_every.mul_f64(random.fraction());
    let mut look_at = Instant::now() + random.jittered(timings.refresh_every);
    loop {
        tokio::select! {
            biased;
            () = wire.closed() => return ConnectionSlot::Lost("the connection was closed".to_owned()),
            () = link.broke.notified() => return ConnectionSlot::Lost("it was given up".to_owned()),
            () = sleep(rest) => {}
        }
        let pong = tokio::select! {
            biased;
            () = wire.closed() => return ConnectionSlot::Lost("the connection was closed".to_owned()),
            // The third unanswered ping ends before the fourth period does.
            pong = link.ping(timings.ping_every * 3 / 4) => pong,
        };
        match pong {
            Pong::Alive(round_trip) => {
                shard.timed(round_trip);
                (silent, rest) = (0, timings.ping_every);
            }
            Pong::Other(round_trip) => {
                shard.timed(round_trip);
                (silent, rest, look_at) = (0, timings.ping_every, Instant::now());
            }
            Pong::Silent => {
                (silent, rest) = (silent + 1, Duration::ZERO);
                if silent == SETTINGS.servers.silent_pings_max {
                    return ConnectionSlot::Hung;
                }
                continue;
            }
            Pong::Changed => {
                shard.forget(link);
                return ConnectionSlot::Lost(Fault::Changed.to_string());
            }
            Pong::Broken(why) => return ConnectionSlot::Lost(why),
        }
        if Instant::now() >= look_at {
            look_at = Instant::now() + random.jittered(timings.refresh_every);
            match link.look().await {
                Ok(unfit) => {
                    shard.judge(unfit);
                    shard.executed(link, link.executed().await);
                }
                Err(Fault::Changed) => {
                    shard.forget(link);
                    return ConnectionSlot::Lost(Fault::Changed.to_string());
                }
                // The server did not answer: the next pings show why.
                Err(_) => {}
            }
        }
    }
}

/// The pause before the next attempt: doubled each time, and shortened by a random part of up to a half.
#[derive(Debug)]
pub(super) struct Pause {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Pause {
    pub(super) const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    pub(super) fn next(&mut self, random: &mut Random) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        random.jittered(pause)
    }

    pub(super) const fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnect_pauses_grow_to_their_bound_and_can_be_reset() {
        let ms = Duration::from_millis;
        let (mut random, mut pause) = (Random::from_state(1), Pause::new(ms(50), ms(2_000)));
        let pauses: Vec<_> = (0..8).map(|_| pause.next(&mut random)).collect();
        assert!(pauses[0] <= ms(50) && pauses[0] >= ms(25), "{pauses:?}");
        assert!(pauses[7] <= ms(2_000) && pauses[7] >= ms(1_000), "{pauses:?}");
        pause.reset();
        assert!(pause.next(&mut random) <= ms(50));
    }
}
