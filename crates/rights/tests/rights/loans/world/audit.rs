//! The checks of a world's state.

use acequia_limits::RATE_PARTS;

use super::{REGIONS, UNIT, World};

impl World {
    pub(super) fn check_debts(&mut self) -> Result<(), String> {
        if self.sliding {
            return Ok(());
        }
        let debts: i64 = self.actors.iter().map(|a| a.debt).sum();
        let all = i128::from(debts) + self.ledger;
        if all < self.ledger_max {
            return Err(format!("debts vanish: {} units", (self.ledger_max - all) as f64 / UNIT as f64));
        }
        self.ledger_max = all;
        Ok(())
    }

    pub(super) fn audit(&mut self) -> Result<(), String> {
        let (mut could, mut owned, mut parts) = (0, 0, 0);
        for i in 0..REGIONS {
            if !self.is_asleep(i) {
                self.settle(i);
                could += self.level(i).max(0);
                let effective = self.actors[i].book.effective(self.standing(i));
                owned += effective.units;
                parts += effective.rate;
            }
        }
        self.check_debts()?;
        let units = self.force.0;
        if owned > units {
            return Err(format!("owned twice: {owned} units of {units}"));
        }
        if parts > RATE_PARTS {
            return Err(format!("owned twice: {parts} parts of {RATE_PARTS}"));
        }
        if self.sliding {
            let limit = self.fallen.iter().map(|(units, _)| *units).max().unwrap_or(0).max(units);
            let used = self.charged_units + (could / UNIT) as u64;
            if used > limit {
                return Err(format!("admits: {used} of {limit} in a window"));
            }
        } else if could > self.oracle {
            return Err(format!("admits: {} units too many", (could - self.oracle) as f64 / UNIT as f64));
        }
        Ok(())
    }
}
