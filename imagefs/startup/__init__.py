"""Where starts of jobs spend their time: events, how they are collected, what follows from them, and reports."""
