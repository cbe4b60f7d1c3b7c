#!/bin/sh
# What the loader needs stays.
exec strip --strip-unneeded "$@"
