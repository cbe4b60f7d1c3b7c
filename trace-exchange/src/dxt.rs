//! Darshan DXT text, as `darshan-dxt-parser` prints it.
