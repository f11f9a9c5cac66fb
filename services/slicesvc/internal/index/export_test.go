package index

// Crowding is how many Services of a namespace are filed under one pair at most.
func Crowding(x *Index, namespace string) int {
	most := 0
	for _, services := range x.namespaces[namespace].anchors {
		most = max(most, len(services))
	}
	return most
}
