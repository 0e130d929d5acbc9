//! A node from outside: its answers, alone and with others, while disks, stores, peers and clocks fail.
//!
//! One program, so that shared code is compiled once: `cargo test -p acequia-node --test node FILE::`.

mod all_or_nothing;
mod charges;
mod classes;
mod forwards;
mod from_callers;
mod full_memory;
mod give_back;
mod histories;
mod holds;
mod leases;
mod members;
mod memory;
mod ordinary;
mod overdraft;
mod patience;
mod pools;
mod regions;
mod reload;
mod restart;
mod rows;
mod scene;
mod seals;
mod set_back;
mod sharing;
mod slots;
mod small;
mod soft;
mod split_brain;
mod stops;
mod store_loss;
mod threads;
