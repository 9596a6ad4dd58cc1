package plan

// Health is how a container that has a health check is judged.
type Health string

// Healths. A container without a health check has none: "".
const (
	HealthStarting  Health = "starting"
	HealthHealthy   Health = "healthy"
	HealthUnhealthy Health = "unhealthy"
)
