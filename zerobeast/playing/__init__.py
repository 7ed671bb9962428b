"""Playing with a saved policy: acting, whole episodes with their statistics, and videos of them."""
