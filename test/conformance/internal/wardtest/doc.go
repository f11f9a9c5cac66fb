// Package wardtest has what tests beside upstream's own code share: leasesvc in this process on a real control plane, Nodes with
// pods, and what was seen of an object over time.
package wardtest
