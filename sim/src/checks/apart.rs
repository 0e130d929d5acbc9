//! A check that ignores the answers of some regions.

use super::Check;
use crate::{
    schedule::Place,
    world::{Answer, World},
};

/// The check, and the regions that it ignores.
#[derive(Debug)]
pub struct Apart<C> {
    check: C,
    places: Vec<Place>,
}

impl<C: Check> Apart<C> {
    /// Wraps a check so that it does not see the answers of these regions.
    pub fn new(check: C, places: &[Place]) -> Self {
        Self { check, places: places.to_vec() }
    }
}

impl<C: Check> Check for Apart<C> {
    fn name(&self) -> &'static str {
        self.check.name()
    }

    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        if self.places.is_empty() {
            return self.check.observe(world, answers);
        }
        let others = answers.iter().filter(|answer| !self.places.contains(&answer.place));
        self.check.observe(world, &others.cloned().collect::<Vec<_>>())
    }

    fn end(&mut self, world: &World) -> Result<(), String> {
        self.check.end(world)
    }

    fn rest(&mut self, world: &World) -> Result<(), String> {
        self.check.rest(world)
    }

    fn summary(&self) -> Vec<String> {
        self.check.summary()
    }
}
