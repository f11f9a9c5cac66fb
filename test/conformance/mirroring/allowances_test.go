package mirroring

// always are the differences that every case may have.
var always = []allowance{{
	field: "deprecations", upstream: none,
	because: "slicesvc warns once for each mirrored Endpoints object, and names its writer. Upstream hides the deprecation.",
}}

// allowed are the intended differences of each case.
var allowed = map[int][]allowance{
	8: {
		{field: "web * since", because: "By chance: upstream uses any old slice for a new port set.", sometimes: true},
	},
	9: {
		{step: "invalid and too many", field: "events", upstream: "*TooManyAddressesToMirror*: 3", ours: "*TooManyAddressesToMirror*: 2",
			because: "The number of addresses over the limit is without the invalid ones, which have an Event of their own."},
	},
	14: {
		{step: "*with reserved labels", field: "writes", upstream: "update without a change 1", ours: none, promise: 9, because: reservedLabels},
		{step: "*reserved labels", field: "writes", upstream: "update 1, update without a change *", ours: "update 1", promise: 9, because: reservedLabels},
	},
	15: {
		{field: "events", upstream: none, ours: "Warning EndpointSlicesContended on web *",
			because: "slicesvc says that another writer changes its slices again and again."},
		{step: "one endpoint twice", field: "web * endpoints", upstream: "10.1.0.1 10.1.0.1 *", ours: "10.1.0.1 10.1.0.2 *", promise: 7, because: multiset},
		{step: "one endpoint twice", field: "writes", upstream: none, ours: "update 1", promise: 7, because: multiset},
		{step: "then an address changes", field: "web * endpoints", upstream: "10.1.0.1 10.1.0.1 *", ours: "10.1.0.1 10.1.0.3 *", promise: 7, because: multiset},
		{step: "then an address changes", field: "writes", upstream: none, ours: "update 1", promise: 7, because: multiset},
		{field: "web * annotations", upstream: none, ours: "note=keep", promise: 8, because: keeps},
		{step: "annotation", field: "writes", upstream: "update 1", ours: none, promise: 8, because: "A foreign annotation is no reason to write."},
		{field: "web * endpoints", ours: "*hints=*", promise: 8, because: "Upstream's update because of the annotation loses the hints."},
		{field: "web * finalizers", upstream: none, ours: "example.com/pin", promise: 8, because: keeps},
		{field: "web * owners", ours: "*v1 ConfigMap other", promise: 8, because: keeps},
		{step: "owner removed", field: "writes", upstream: none, ours: "update 1", promise: 11, because: ownerChecked},
		{field: "db * owners", upstream: none, ours: "v1 Endpoints db controller blocks", promise: 11, because: ownerChecked},
	},
	16: {
		{field: "pinned *", promise: 6, because: terminating},
		{step: "held*", field: "writes", promise: 6, because: terminating},
		{step: "let go*", field: "writes", ours: "update 1", promise: 6, because: "Upstream waits for the slice of before, sometimes until it restarts.", sometimes: true},
		{field: "manager *", upstream: none, ours: "*", promise: 5, because: stale},
		{step: "other manager", field: "writes", upstream: none, ours: "create 1", promise: 5, because: stale},
		{step: "other manager, then*", field: "writes", upstream: none, ours: "update 1", promise: 5, because: stale},
		{field: "service *", upstream: none, promise: 5, because: stale},
		{step: "other Service", field: "writes", upstream: "delete 1", ours: "create 1, delete 1", promise: 5, because: stale},
		{step: "other Service, then*", field: "writes", upstream: none, ours: "update 1", promise: 5, because: stale},
		{step: "own deletion held, and*", field: "two *", upstream: "10.1.0.1 *", ours: "10.1.0.7 *", promise: 6, because: terminating},
		{step: "own deletion held, and*", field: "writes", upstream: none, ours: "update 1", promise: 6, because: terminating},
		{step: "own deletion held, then*", field: "two *", upstream: "10.1.0.1 *", ours: "10.1.0.7 *", promise: 6, because: terminating, sometimes: true},
		{step: "own deletion held, then*", field: "writes", upstream: "update 1", ours: none, promise: 6, because: "Upstream writes only now what waited.", sometimes: true},
	},
	17: {
		{field: "web * since", because: anyOne, sometimes: true},
		{step: "a duplicate", field: "writes", upstream: "delete 1*", ours: "delete 1*", because: anyOne, sometimes: true},
		{step: "two others", field: "writes", upstream: "delete 2*", ours: "delete 2*", because: anyOne, sometimes: true},
	},
	18: {
		{step: "two families", field: "writes", upstream: "update 24, refused: create 409", ours: "update 24", promise: 4,
			because: "Upstream creates one of two slices under the name of an old one, fails, and tries again until chance helps.", sometimes: true},
		{step: "one port set more*", field: "web * since", because: "By chance: upstream uses the old slice for one of the new port sets.", sometimes: true},
	},
	20: {
		{step: "further port set in it", field: "db * endpoints", upstream: "10.1.0.5 *", ours: "10.1.0.6 *", promise: 12, because: eachSlice},
		{step: "further port set in it", field: "writes", upstream: "refused: create 403", ours: "update 1, refused: create 403", promise: 12, because: eachSlice},
	},
	22: {
		{field: "events", upstream: none, ours: "Warning FailedToUpdateEndpointSlices on busy *", promise: 12, because: "slicesvc says what fails. Upstream logs it only."},
		{step: "many", field: "writes", upstream: "create 40", ours: "create 3*, refused: create 504", because: underWay, sometimes: true},
		{step: "killed*", field: "writes", upstream: "update *", ours: "update 3*, refused: update 504", because: underWay, sometimes: true},
		{step: "killed*", field: "writes", upstream: "update 3*, refused: update 504", ours: "update *", because: underWay, sometimes: true},
	},
	metricsCase: {
		{field: "endpoints_removed_per_sync_sum", because: "Upstream does not count the endpoints of a port set that goes, and of an object that goes."},
		{step: "deleted", field: `changes{operation="delete"}`, upstream: "2", ours: "3", because: "Upstream does not count the deletion of the slices of an object that goes."},
	},
	spillCase: {
		{field: "web IPv4 [http=80/TCP] (2)", upstream: none, ours: "endpoints *", promise: 1, because: spills},
		{field: "web IPv4 [http=80/TCP] (3)", upstream: none, ours: "endpoints *", promise: 1, because: spills},
		{field: "web IPv* endpoints", promise: 1, because: spills},
		{field: "web IPv* since", promise: 1, because: spills, sometimes: true},
		{field: "events", upstream: "*TooManyAddressesToMirror*", ours: none, promise: 1, because: spills},
		{field: "writes", promise: 1, because: spills},
	},
	23: {
		{field: "web IPv4*", upstream: none, promise: 2, because: splitPorts},
		{field: "plain IPv4*", upstream: none, promise: 2, because: splitPorts},
		{field: "twice IPv4*", upstream: none, promise: 2, because: splitPorts},
		{step: "equal protocol and address in two subsets", field: "app * endpoints", upstream: "10.1.0.1 10.1.0.2 *", ours: "10.1.0.1 *", promise: 3, because: byValue},
		{step: "equal protocol and 700*", field: "app * endpoints", upstream: "1000 *", ours: "1000 from 10.1.0.1 to 10.2.1.143 *", promise: 3, because: byValue},
		{step: "equal protocol and 700*", field: "events", ours: "*TooManyAddressesToMirror on app *: 400", promise: 3, because: byValue},
		{step: "equal protocol and*", field: "writes", ours: "update 1", promise: 3, because: byValue},
		{field: "writes", upstream: "*refused: create 422", promise: 2, because: splitPorts},
	},
}

// Keys of the allowances of cases that have the number of another one.
const (
	spillCase   = -12
	metricsCase = -24
)

const (
	reservedLabels = "Reserved labels of the Endpoints object count for nothing. Upstream finds them missing at each sync, and writes what is there."
	multiset       = "Endpoints are compared as a multiset. Upstream counts an endpoint that the slice has twice as two."
	keeps          = "Updates keep annotations, finalizers and owners of other writers. Upstream replaces the object."
	ownerChecked   = "The owner is always checked. Upstream looks only for an owner of the same name with another UID."
	terminating    = "A slice that is being deleted counts for nothing, so another one is made. Upstream waits for it."
	stale          = "Own writes are known by UID and version. Upstream takes its cache for old for ever after a slice was relabelled."
	underWay       = "By chance: kube-apiserver stored a slice when the writer was gone, and recorded a timeout."
	anyOne         = "By chance: any slice of a group is kept, and one that lacks the owner is updated."
	eachSlice      = "Each slice is written on its own. Upstream ends with the first refused one."
	splitPorts     = "Ports of one name are in different slices. Upstream writes them to one slice, which kube-apiserver refuses each time."
	spills         = "With --mirroring-spill no address is dropped: what does not fit is in further slices."
	byValue        = "Ports are compared by value. Upstream takes equal ports with an application protocol for different ones."
)
