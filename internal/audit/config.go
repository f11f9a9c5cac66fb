package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
)

// toProcessLog is the name of the file for which the log of the process stands.
const toProcessLog = "-"

// Config says where the audit log is.
type Config struct {
	// File is a path, "-" for the log of the process, or empty for no audit log.
	File string
	// MaxBytes is the size at which a file becomes a backup.
	MaxBytes int64
	// Backups is the number of former files to keep: File.1 is the newest.
	Backups int
}

// DefaultConfig returns a configuration that writes to the log of the process.
func DefaultConfig() Config {
	return Config{File: toProcessLog, MaxBytes: 100 << 20, Backups: 5}
}

// RegisterFlags adds the flags of the audit log to fs. The current values of c are their defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.File, "audit-log-file", c.File,
		"File of the audit log, one JSON object for each mutation and each denial; '-' is the log of the process, empty none.")
	fs.Int64Var(&c.MaxBytes, "audit-log-max-bytes", c.MaxBytes, "Size at which --audit-log-file becomes a backup.")
	fs.IntVar(&c.Backups, "audit-log-backups", c.Backups, "Backups of --audit-log-file to keep.")
}

// Validate returns all problems of c.
func (c *Config) Validate() []error {
	if !c.toFile() {
		return nil
	}
	var problems []error
	if c.MaxBytes < minFileBytes {
		problems = append(problems, fmt.Errorf("--audit-log-max-bytes: %d is less than %d", c.MaxBytes, minFileBytes))
	}
	if c.Backups < 0 {
		problems = append(problems, fmt.Errorf("--audit-log-backups: %d is negative", c.Backups))
	}
	if info, err := os.Stat(filepath.Dir(c.File)); err != nil {
		problems = append(problems, fmt.Errorf("--audit-log-file: %w", err))
	} else if !info.IsDir() {
		problems = append(problems, errors.New("--audit-log-file: its folder is a file"))
	}
	return problems
}

func (c *Config) toFile() bool { return c.File != "" && c.File != toProcessLog }
