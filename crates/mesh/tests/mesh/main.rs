//! Nodes that send each other frames over QUIC, among hostile peers and in any weather.

mod frames;
mod hostile;
mod mask;
mod scene;
mod weather;
