//go:build !linux

package robustness

import "errors"

var errNoLimit = errors.New("the files of another process cannot be limited on this system")

func limitFiles(int, uint64) error { return errNoLimit }

func unlimitFiles(int) error { return errNoLimit }
