package artifacts

import "time"

// CurrentHold keeps a device at an earlier generation: a rollback by hand.
type CurrentHold struct {
	Generation uint64    `json:"generation"`
	By         string    `json:"by"` // "user ana (1000)"
	Via        string    `json:"via,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	At         time.Time `json:"at"`
}

// UnreadableHold stands for a hold that a device reports in a form that is not known here.
func UnreadableHold() *CurrentHold {
	return &CurrentHold{By: "an unknown person (the report of it cannot be read)"}
}

// UnreadableWaits stand for changes that wait, as [UnreadableHold] for a hold.
func UnreadableWaits() []CurrentWait {
	return []CurrentWait{{Name: "changes", Code: "unreadable", Message: "the report of them cannot be read"}}
}

// CurrentWait is a change of a deployment that waits for an approval, a lock or a window.
type CurrentWait struct {
	Deployment string    `json:"deployment"` // id
	Name       string    `json:"name"`
	Code       string    `json:"code"`
	Message    string    `json:"message"`
	Until      time.Time `json:"until,omitzero"` // when that ends by itself; zero: it does not, or it is not known
}
