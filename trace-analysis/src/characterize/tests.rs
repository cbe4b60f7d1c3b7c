//! The rules of Darshan, one by one, on hand-made events.
