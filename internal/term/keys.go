package term

// Prefix is the prefix of all keys of a cluster.
func Prefix(cluster string) string { return "/trivet/" + cluster + "/" }
