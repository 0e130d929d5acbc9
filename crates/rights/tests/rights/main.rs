//! Rights under adversaries: loans, pools, standing shares and versions of the catalogue, in random histories.

mod loans;
mod mutations;
mod pool;
mod standing;
mod versions;
