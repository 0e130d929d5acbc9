//! Nodes that send each other frames over QUIC, among peers that are hostile and in any weather.

mod frames;
mod hostile;
mod mask;
mod scene;
mod weather;
