package bootstrapsvc

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
)

// AutoRepair says what is mended without asking anybody.
type AutoRepair string

const (
	// AutoRepairSafe mends what is safe by rule.
	AutoRepairSafe AutoRepair = "safe"
	// AutoRepairOff mends nothing.
	AutoRepairOff AutoRepair = "off"
)

// AuditConfig is what an operator decides about the audit of ClusterIPs and node ports.
type AuditConfig struct {
	// AutoRepair says what is mended without asking anybody.
	AutoRepair AutoRepair
	// FindingHistory and RepairHistory are how many ended findings and repairs are remembered.
	FindingHistory, RepairHistory int
	// NodePortRange is kube-apiserver's --service-node-port-range; empty: taken as it is stored.
	NodePortRange string
}

func defaultAudit() AuditConfig {
	return AuditConfig{AutoRepair: AutoRepairSafe, FindingHistory: 1000, RepairHistory: 100}
}

func (c *AuditConfig) registerFlags(fs *pflag.FlagSet) {
	fs.StringVar((*string)(&c.AutoRepair), "auto-repair", string(c.AutoRepair),
		"What is mended of allocated ClusterIPs and node ports without asking anybody: \"safe\" what is safe by rule, \"off\" nothing.")
	fs.IntVar(&c.FindingHistory, "finding-history", c.FindingHistory,
		"How many findings that have ended are remembered.")
	fs.IntVar(&c.RepairHistory, "repair-history", c.RepairHistory,
		"How many repairs are remembered; fewer where they have many steps.")
	fs.StringVar(&c.NodePortRange, "service-node-port-range", c.NodePortRange,
		"Range of node ports, as given to kube-apiserver; a stored range that differs is a finding. Default: taken as it is stored.")
}

func (c *AuditConfig) problems(add func(flag string, err error)) {
	if c.AutoRepair != AutoRepairSafe && c.AutoRepair != AutoRepairOff {
		add("auto-repair", fmt.Errorf("%q is neither %q nor %q", string(c.AutoRepair), AutoRepairSafe, AutoRepairOff))
	}
	add("finding-history", checkHistory(c.FindingHistory))
	add("repair-history", checkHistory(c.RepairHistory))
	add("service-node-port-range", checkPortRange(c.NodePortRange))
}

// maxHistory keeps what is remembered small enough for etcd.
const maxHistory = 10_000

func checkHistory(count int) error {
	if count < 1 || count > maxHistory {
		return fmt.Errorf("%d is not possible, want 1 to %d", count, maxHistory)
	}
	return nil
}

// checkPortRange takes the form in which kube-apiserver stores the range.
func checkPortRange(text string) error {
	if text == "" {
		return nil
	}
	from, to, _ := strings.Cut(text, "-")
	first, err := strconv.ParseUint(from, 10, 16)
	last, err2 := strconv.ParseUint(to, 10, 16)
	if err != nil || err2 != nil || first == 0 || last < first {
		return fmt.Errorf("%q is not a range like 30000-32767", text)
	}
	return nil
}

// auditor is the configuration of the allocationcontroller.
func (c *AuditConfig) controller() allocationcontroller.Config {
	cfg := allocationcontroller.Config{
		AutoRepair: c.AutoRepair == AutoRepairSafe, FindingHistory: c.FindingHistory, RepairHistory: c.RepairHistory,
	}
	if c.NodePortRange != "" {
		cfg.ExpectedRanges = map[allocation.Store]string{allocation.NodePorts: c.NodePortRange}
	}
	return cfg
}
