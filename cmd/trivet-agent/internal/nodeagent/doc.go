// Package nodeagent is the program trivet-agent: its flags, its parts and the order of their start
// and stop.
//
// In probe mode a prober observes the kubelet, and the beats carry the age of the last observation.
// In endpoint mode the kubelet writes its Lease through the agent, and a beat goes out because the
// kubelet wrote. Every part waits for what it needs and tells why in /readyz: certificates that do
// not exist yet, replicas that are not known yet, a kubelet that does not answer.
package nodeagent
