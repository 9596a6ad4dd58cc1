package workload

import "time"

// RestartPolicy is Compose's restart.
type RestartPolicy string

// Restart policies.
const (
	RestartNo            RestartPolicy = "no"
	RestartAlways        RestartPolicy = "always"
	RestartOnFailure     RestartPolicy = "on-failure"
	RestartUnlessStopped RestartPolicy = "unless-stopped"
)

// Restart says what follows an exit.
type Restart struct {
	Policy RestartPolicy // "": no, as Compose has it
	Max    int           // attempts in a row; 0: no limit

	Delay  time.Duration `json:",omitzero"` // before an attempt; 0: 100 ms, doubling
	Window time.Duration `json:",omitzero"` // an attempt that ran this long succeeded; 0: 10 s
}
