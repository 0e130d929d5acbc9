//! How long a server takes to execute a function, from the server's own counts.

/// The counts in the section `commandstats` of `INFO`: calls of functions by all clients, since the server's
/// start or the last reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Executed {
    calls: u64,
    us: u64,
}

impl Executed {
    /// Reads the counts; `None` if the section lacks them.
    pub(super) fn read(info: &str) -> Option<Self> {
        let counts = info.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:"))?;
        let field = |name: &str| {
            let mut fields = counts.trim().split(',').filter_map(|field| field.split_once('='));
            fields.find_map(|(field, value)| (field == name).then(|| value.parse().ok())?)
        };
        Some(Self { calls: field("calls")?, us: field("usec")? })
    }
}

/// The mean between the last two looks at one server. The connections of a shard look in turns, and share
/// this.
#[derive(Debug, Default)]
pub(super) struct Executing {
    /// The server of the last look, and its counts.
    last: Option<(String, Executed)>,
    mean_us: u64,
}

impl Executing {
    /// Takes the counts of a look at a server.
    pub(super) fn see(&mut self, incarnation: &str, executed: Option<Executed>) {
        let last = self.last.take().filter(|(known, _)| known == incarnation).map(|(_, last)| last);
        let (Some(last), Some(now)) = (last, executed) else {
            self.mean_us = 0;
            self.last = executed.map(|now| (incarnation.to_owned(), now));
            return;
        };
        // Without new calls the mean stays. If the counts began anew, the mean is unknown.
        if now.calls != last.calls {
            let us = now.us.saturating_sub(last.us);
            self.mean_us = us.checked_div(now.calls.saturating_sub(last.calls)).unwrap_or(0);
        }
        self.last = Some((incarnation.to_owned(), now));
    }

    /// Microseconds; 0 while the mean is unknown.
    pub(super) const fn mean_us(&self) -> u64 {
        self.mean_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(calls: u64, us: u64) -> Option<Executed> {
        Some(Executed { calls, us })
    }

    #[test]
    fn the_command_counts_of_a_server_are_read() {
        let of = |counts: &str| {
            Executed::read(&format!(
                "# Commandstats\r\ncmdstat_fcall_ro:calls=3,usec=9\r\ncmdstat_fcall:{counts}\r\n\
                 cmdstat_info:calls=1,usec=50\r\n"
            ))
        };
        let counts = "calls=12,usec=345,usec_per_call=28.75,rejected_calls=0,failed_calls=7";
        assert_eq!(of(counts), counted(12, 345));
        for other in
            ["", "calls=12", "calls=-1,usec=345", "calls=1e3,usec=345", "usec_per_call=28.75,calls=12"]
        {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(Executed::read("# Commandstats\r\ncmdstat_info:calls=1,usec=50\r\n"), None);
        assert_eq!(Executed::read(""), None);
    }

    #[test]
    fn the_mean_execution_time_covers_calls_since_the_last_reading() {
        let mut executing = Executing::default();
        let mut see = |server: &str, executed| {
            executing.see(server, executed);
            executing.mean_us()
        };
        assert_eq!(see("a", counted(1_000, 90_000)), 0, "of one look nothing is known");
        assert_eq!(see("a", counted(1_010, 90_400)), 40);
        assert_eq!(see("a", counted(1_010, 90_400)), 40, "nothing was executed");
        assert_eq!(see("a", counted(1_110, 92_400)), 20);
        // The counts were reset, or an older answer came late.
        assert_eq!(see("a", counted(3, 60)), 0);
        assert_eq!(see("a", counted(5, 100)), 20);
        assert_eq!(see("a", counted(9, 40)), 0, "a count that goes back alone");
        // The server gives no counts any more.
        assert_eq!(see("a", counted(19, 140)), 10);
        assert_eq!(see("a", None), 0);
        assert_eq!(see("a", counted(20, 150)), 0);
        // This is another server, with higher counts.
        assert_eq!(see("a", counted(30, 250)), 10);
        assert_eq!(see("b", counted(5_000, 1_000_000)), 0);
        assert_eq!(see("b", counted(5_001, 1_000_007)), 7);
    }
}
