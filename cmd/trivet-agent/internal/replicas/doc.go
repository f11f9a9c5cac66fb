// Package replicas finds the replicas of leasesvc: by the addresses that an operator names, or by
// the EndpointSlices of their Service. The last list that was found survives a restart of the agent
// and an outage of its source.
package replicas
